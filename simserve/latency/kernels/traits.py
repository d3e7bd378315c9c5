"""How the attention kernels that vLLM picks on a GPU cut their work.

Hopper: FlashAttention 3; data-centre Blackwell: TensorRT-LLM's. Both split long contexts over idle
multiprocessors and read each KV head once for its whole group of query heads. Elsewhere: FlashAttention 2,
whose calls with more than one query per sequence do neither.
"""

from __future__ import annotations

from dataclasses import dataclass

CHIPS = {
    "a100_sxm": (108, 40),
    "h100_sxm": (132, 50),
    "h200_sxm": (132, 50),
    "h800": (132, 50),
    "h20": (78, 60),
    "b200_sxm": (148, 126),
    "l40s": (142, 96),
    "rtx_4090": (128, 72),
    "rtx_pro_6000": (188, 128),
}
"""Streaming multiprocessors and L2 cache in MB by GPU (NVIDIA's data sheets and architecture white
papers)."""
USUAL_CHIP = (132, 50)


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


def kernel_traits(gpu: str, sm_arch: int) -> KernelTraits:
    """Return the traits for a GPU; one that is not in `CHIPS` is taken to be as large as an H100."""
    if sm_arch == 0:
        return PLAIN
    processors, l2_mb = CHIPS.get(gpu, USUAL_CHIP)
    if sm_arch in (90, 100, 103):
        return KernelTraits(True, 128, processors, l2_mb * 1e6)
    # FlashAttention 2 takes 128 x 64 tiles on A100, and 64 rows on the smaller shared memory of the others;
    # steps in measured prefill times on RTX 4090 and RTX PRO 6000 lie where tiles of 64 rows predict them.
    return KernelTraits(False, 128 if sm_arch == 80 else 64, processors, l2_mb * 1e6)
