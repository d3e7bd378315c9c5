"""How the attention kernels that vLLM picks on a GPU cut their work.

Hopper: FlashAttention 3; data-centre Blackwell: TensorRT-LLM's. Both split long contexts over idle
multiprocessors and read each KV head once for its whole group of query heads. Elsewhere: FlashAttention 2,
whose calls with more than one query per sequence do neither.
"""

from __future__ import annotations

from dataclasses import dataclass

USUAL_MULTIPROCESSORS, USUAL_L2_BYTES = 132, 50e6
"""An H100's (NVIDIA's architecture white paper, 2022): what is taken where a GPU's file does not say."""


@dataclass(frozen=True)
class KernelTraits:
    """Traits of the attention kernels of one architecture."""

    splits_contexts: bool
    """True if a prefill with few tiles splits its context over idle multiprocessors, and packs query
    heads."""
    tile_rows: int
    """Queries in a tile."""
    multiprocessors: int
    l2_bytes: float


PLAIN = KernelTraits(True, 1, 1, 32e6)
"""A CPU: work in proportion to (query, key) pairs, no tiles of note; chunks and decodes in calls of their
own."""


def kernel_traits(
    sm_arch: int, multiprocessors: int = USUAL_MULTIPROCESSORS, l2_bytes: float = USUAL_L2_BYTES
) -> KernelTraits:
    """Return the traits for an architecture on a chip of that size."""
    if sm_arch == 0:
        return PLAIN
    if sm_arch in (90, 100, 103):
        return KernelTraits(True, 128, multiprocessors, l2_bytes)
    # FlashAttention 2 takes 128 x 64 tiles on A100, and 64 rows on the smaller shared memory of the others;
    # steps in measured prefill times on RTX 4090 and RTX PRO 6000 lie where tiles of 64 rows predict them.
    return KernelTraits(False, 128 if sm_arch == 80 else 64, multiprocessors, l2_bytes)
