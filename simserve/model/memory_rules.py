"""What an engine sets aside before it gives the rest of the memory to the KV cache.

vLLM: `gpu_memory_utilization` x HBM minus weights, a profiled activation peak and, since 0.21, an estimate
of the CUDA graphs (`VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS`). Before 0.21 graphs came out of the rest.
SGLang: a static share holds weights and cache, all else lives outside it. Rules of vLLM were read in its
wheels of 0.15.1, 0.19.0 and 0.33.0; constants from logs name them (docs/memory.md has the list).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from simserve.model.spec import Attention, GqaAttention, MlaAttention, ModelSpec
from simserve.units import GIB


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

    def kernels(self, sm_arch: int, processes: int) -> int:
        """Return what kernels and workspaces take of one of so many GPUs."""
        whole = self.kernels_bytes
        if processes > 1 and self.joined_kernels_bytes is not None:
            whole = self.joined_kernels_bytes
        return max(0, whole - _LESS_ON_AMPERE) if sm_arch < 89 else whole


_SORTING_SAMPLER = 38
"""Logits in 16 and 32 bit (6), sorted values and 64-bit indices (12), the sort's second buffer (12),
probabilities (4) and their sums (4): Qwen3-14B peaks at 5.64 GiB in vLLM 0.15 and 0.16 (llm-d-planner,
version sweep on H100)."""
_FILTERING_SAMPLER = 14
"""Logits in 16 and 32 bit (6), probabilities (4) and noise (4): vLLM filters without sorting since 0.17
(2.23 GiB for the same model)."""
_KERNELS_BEFORE_18, _KERNELS = round(0.13 * GIB), round(0.25 * GIB)
"""`non-torch` of one H100 alone: 0.13 GiB in vLLM 0.11 to 0.17, 0.24 to 0.27 in 0.18 and 0.19 (same
sweeps)."""
_JOINED_KERNELS = round(0.07 * GIB)
"""The same of a pipeline's stages in 0.19 (Llama-3.1-8B, pp 2 and 4)."""
_PEERS = round(2.03 * GIB)
"""What tp 2 and 4 add to that in 0.19: 2.00 and 2.06 GiB for Llama-3.1-8B (same sweep); other models there
are within 0.1 GiB. Taken for 0.17 and from 0.21 on too [assumption]. GPUs without NVLink, and those before
Hopper, which have no symmetric memory in vLLM (`SYMM_MEM_ALL_REDUCE_MAX_SIZES`): communication buffers."""
_LESS_ON_AMPERE = round(0.10 * GIB)
"""Four starts on an RTX 3090 in 0.17.1 leave 0.02 to 0.04 GiB beside the sampler's peak, where an H100 has
0.13 (vllm-offload-profiles)."""

VLLM = MemoryRules(
    "vLLM since 0.33",
    activation_inside=True,
    graphs_inside=True,
    logit_bytes=_FILTERING_SAMPLER,
    filters=True,
    keeps_expert_buffers=True,
    bufferless=("nf4", "mxfp4"),
    kernels_bytes=_KERNELS,
    joined_kernels_bytes=_JOINED_KERNELS,
    peer_bytes=_PEERS,
    mxfp4="triton",
)
VLLM_21_TO_32 = replace(VLLM, name="vLLM 0.21 to 0.32", bufferless=MemoryRules.bufferless)
"""When int4 experts got buffers is known to lie between 0.19 and 0.33; a start of 0.24 has none."""
VLLM_17_TO_20 = replace(VLLM_21_TO_32, name="vLLM 0.17 to 0.20", graphs_inside=False)
VLLM_17 = replace(VLLM_17_TO_20, name="vLLM 0.17", kernels_bytes=_KERNELS_BEFORE_18)
VLLM_BEFORE_17 = replace(
    VLLM_17_TO_20,
    name="vLLM before 0.17",
    logit_bytes=_SORTING_SAMPLER,
    filters=False,
    kernels_bytes=_KERNELS_BEFORE_18,
    joined_kernels_bytes=None,
    peer_bytes=0,
)
VLLM_BEFORE_14 = replace(VLLM_BEFORE_17, name="vLLM before 0.14", keeps_expert_buffers=False, mxfp4="marlin")
"""0.10.1 names Marlin for gpt-oss on an H100, 0.14.1 Triton (vllm issues 23278, 33155)."""
SGLANG = MemoryRules(
    "SGLang",
    activation_inside=False,
    graphs_inside=False,
    logit_bytes=_FILTERING_SAMPLER,
    filters=False,
    keeps_expert_buffers=False,
    copies_latents=True,
    kernels_bytes=0,
    of_free_memory=True,
)
"""Pool = free memory after loading - free memory before it x (1 - share) (0.5.23, `kv_cache_configurator`):
kernels and buffers that come later lie outside."""


def memory_rules(engine: str) -> MemoryRules:
    """Return the rules of an engine preset; policies that are no engine's own follow vLLM's latest."""
    found = re.fullmatch(r"(vllm|sglang)-(\d+)\.(\d+).*", engine)
    if found is None:
        return SGLANG if engine == "sglang" else VLLM
    return rules_of_release(found[1], (int(found[2]), int(found[3])))


def rules_of_release(engine: str, release: tuple[int, ...]) -> MemoryRules:
    """Return the rules of a release of `vllm` or `sglang`, as (major, minor, ...)."""
    if engine == "sglang":
        return SGLANG
    since = (
        ((0, 33), VLLM),
        ((0, 21), VLLM_21_TO_32),
        ((0, 18), VLLM_17_TO_20),
        ((0, 17), VLLM_17),
        ((0, 14), VLLM_BEFORE_17),
    )
    return next((rules for first, rules in since if release[:2] >= first), VLLM_BEFORE_14)


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
    widths = [_rotary_width(attention) for group in spec.layers for attention in group.attentions]
    return value_bytes * spec.max_position_embeddings * max(widths)


def _rotary_width(attention: Attention) -> int:
    match attention:
        case GqaAttention():
            return attention.head_dim
        case MlaAttention():
            return attention.qk_rope_head_dim
        case _:
            return 0


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
