"""What an engine sets aside before it gives the rest of the memory to the KV cache.

The rules of an engine's releases are in its folder (`engines/vllm/memory.py`); here is what a set of rules
says, and what all processes on a GPU take whatever runs on it (docs/memory.md has the list).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simserve.model.kv import PackedBlocks
from simserve.model.spec import ModelSpec, Stage
from simserve.units import GIB

PackedRule = Callable[[ModelSpec, Stage, str, int, int], PackedBlocks]
"""From model, stage, KV type, most tokens of a step and most sequences to the blocks of compressed
attention."""


@dataclass(frozen=True)
class MemoryRules:
    """Accounting of one engine version."""

    name: str
    activation_inside: bool
    """True if activations come out of the reserved share."""
    graphs_inside: bool
    """True if CUDA graphs come out of the reserved share."""
    logit_bytes: int
    """Bytes per sequence and word of the vocabulary while sampling in 16 bit."""
    filters: bool
    """True if top-k and top-p need a row of 32-bit logits for each multiprocessor."""
    keeps_expert_buffers: bool
    """True if the buffers of routed experts stay allocated from the first step on."""
    bufferless: tuple[str, ...] = ("int4", "nf4", "mxfp4")
    """Beginnings of the types of experts whose kernels have no such buffers."""
    copies_latents: bool = False
    """True if what expands latents is copied for absorbed attention in 16 bit too, not only if quantised."""
    kernels_bytes: int = round(0.2 * GIB)
    """Kernel images and library workspaces of a process that is alone, on Ada, Hopper and later."""
    joined_kernels_bytes: int | None = None
    """The same of one of several processes, which loaded some before the engine first looked; None: equal."""
    peer_bytes: int = 0
    """What ranks of tensor parallelism map of each other over NVLink on Hopper and later; 0: communication
    buffers alone."""
    of_free_memory: bool = False
    """True if the share is of what is free once context and communicators are there, not of the GPU."""
    mxfp4: str = "plain"
    """Kernels of MXFP4 experts on GPUs whose own are not used: `marlin`; `triton` on Hopper, and Marlin on
    others; `plain`: they are held as in the checkpoint."""

    packed: PackedRule | None = None
    """How the memory is divided among the caches of compressed attention; None: the release has no such."""

    def kernels(self, sm_arch: int, processes: int) -> int:
        """Return what kernels and workspaces take of one of so many GPUs."""
        whole = self.kernels_bytes
        if processes > 1 and self.joined_kernels_bytes is not None:
            whole = self.joined_kernels_bytes
        return max(0, whole - _LESS_ON_AMPERE) if sm_arch < 89 else whole


_LESS_ON_AMPERE = round(0.10 * GIB)
"""Four starts on an RTX 3090 in 0.17.1 leave 0.02 to 0.04 GiB beside the sampler's peak, where an H100 has
0.13 (vllm-offload-profiles)."""
FILTERING_SAMPLER = 14
"""Logits in 16 and 32 bit (6), probabilities (4) and noise (4): vLLM filters without sorting since 0.17
(2.23 GiB for the same model)."""

CONTEXT_BYTES = round(0.51 * GIB)
"""CUDA context of one process, before the engine first looks (vLLM 0.19 on one H100, llm-d-planner)."""
_COMMUNICATORS = round(0.92 * GIB)
"""NCCL's first communicators over NVLink, there too: 0.92 to 1.02 GiB with 2 and 4 ranks (same sweep)."""


def communicator_bytes(ranks: int, nvlink: bool) -> int:
    """Return the communicators that a process of so many opens before its engine first looks."""
    if ranks == 1:
        return 0
    return _COMMUNICATORS if nvlink else nccl_bytes(ranks)


KERNELS_BYTES = round(0.2 * GIB)
"""Kernel images and library workspaces of one process [assumption, of the size that a measured Llama-2-7B run
of vLLM 0.15.1 on one H100 leaves unexplained; not fitted to any other run]."""

NCCL_BYTES = {1: 0, 2: 342 << 20}
NCCL_BYTES_MORE = 392 << 20
"""Communication buffers by ranks (aiconfigurator-core 0.12.0, systems/h100_sxm.yaml, `nccl_mem`)."""

_GRAPHS_BASE = round(0.37 * GIB)
_GRAPH_BYTES_PER_LAYER = 175 << 10
"""CUDA graphs: a base, and so much for each graph and layer. From the stages of 32, 16 and 8 layers of
Llama-3.1-8B in vLLM 0.19 (0.91, 0.65, 0.51 GiB for 102 graphs; llm-d-planner's sweep on H100)."""
GRAPH_SIZES_LIMIT = 512
"""Largest captured size in tokens; 1024 on the SM 100 family (vLLM 0.33)."""


def rotary_table_bytes(spec: ModelSpec, value_bytes: int = 2) -> int:
    """Return the tables of sines and cosines (vLLM): positions x rotary width, of each kind of layer."""
    if spec.learned_positions:
        return 0
    if spec.rotary_values:
        return value_bytes * spec.rotary_values
    widths = [attention.rotary_width for group in spec.layers for attention in group.attentions]
    return value_bytes * spec.max_position_embeddings * max(widths)


def captured_sizes(max_num_seqs: int, sm_arch: int) -> int:
    """Return how many batch sizes vLLM captures: 1, 2, 4, 8 to 248 by 8, then by 16 to the limit."""
    limit = min(2 * max_num_seqs, 2 * GRAPH_SIZES_LIMIT if 100 <= sm_arch < 110 else GRAPH_SIZES_LIMIT)
    return _sizes(limit)


def _sizes(limit: int) -> int:
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, limit + 1, 16)]
    return sum(size <= limit for size in sizes)


def captured_graphs(max_num_seqs: int, sm_arch: int, full: bool = True) -> int:
    """Return how many graphs that are: of the layers' pieces for every size, and, if `full`, of whole decode
    steps for those that a batch can have."""
    pieces = captured_sizes(max_num_seqs, sm_arch)
    return pieces + (min(pieces, _sizes(max_num_seqs)) if full else 0)


def graph_bytes(layers: int, max_num_seqs: int, sm_arch: int, full: bool = True) -> tuple[int, str]:
    """Return the memory of the CUDA graphs of so many layers, and its basis."""
    graphs = captured_graphs(max_num_seqs, sm_arch, full)
    basis = f"{_GRAPHS_BASE / GIB:.2f} GiB, and {graphs} graphs x {layers} layers x "
    basis += f"{_GRAPH_BYTES_PER_LAYER >> 10} KiB [assumption: as of Llama-3.1-8B]"
    return _GRAPHS_BASE + graphs * layers * _GRAPH_BYTES_PER_LAYER, basis


def nccl_bytes(ranks: int) -> int:
    """Return the communication buffers of a GPU that talks to `ranks` - 1 others."""
    return NCCL_BYTES.get(ranks, NCCL_BYTES_MORE)
