"""What an engine sets aside before it gives the rest of the memory to the KV cache.

vLLM: `gpu_memory_utilization` x HBM minus weights, a profiled activation peak and, since 0.21, an estimate
of the CUDA graphs (`VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS`, read in the wheel of 0.33.0). Before 0.21
graphs came out of the rest. SGLang: a static share holds weights and cache, all else lives outside it.
"""

from __future__ import annotations

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
    """Bytes per sequence and word of the vocabulary while sampling."""
    kernels_bytes: int = round(0.2 * GIB)
    """Kernel images and library workspaces of one process [SGLang: assumption]."""
    peer_bytes: int = 0
    """What ranks of tensor parallelism map of each other over NVLink; 0: communication buffers alone."""
    pads_mxfp4: bool = False
    """True if the kernels of MXFP4 experts hold them padded."""


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
_PEERS = round(1.85 * GIB)
"""What tp 2 and 4 add to it in 0.19: 1.82 and 1.88 GiB for Llama-3.1-8B (same sweep); other models there are
within 0.1 GiB. Taken for later releases too [assumption]. GPUs without NVLink: communication buffers."""

VLLM = MemoryRules(
    "vLLM since 0.21",
    activation_inside=True,
    graphs_inside=True,
    logit_bytes=_FILTERING_SAMPLER,
    kernels_bytes=_KERNELS,
    peer_bytes=_PEERS,
    pads_mxfp4=True,
)
VLLM_17_TO_20 = replace(VLLM, name="vLLM 0.17 to 0.20", graphs_inside=False)
VLLM_17 = replace(VLLM_17_TO_20, name="vLLM 0.17", kernels_bytes=_KERNELS_BEFORE_18)
VLLM_BEFORE_17 = replace(
    VLLM_17_TO_20,
    name="vLLM before 0.17",
    logit_bytes=_SORTING_SAMPLER,
    kernels_bytes=_KERNELS_BEFORE_18,
    peer_bytes=0,
)
SGLANG = MemoryRules("SGLang", activation_inside=False, graphs_inside=False, logit_bytes=_FILTERING_SAMPLER)

_BY_ENGINE = {"vllm-0.15": VLLM_BEFORE_17, "vllm-0.19": VLLM_17_TO_20}


def memory_rules(engine: str) -> MemoryRules:
    """Return the rules of an engine preset; policies that are no engine's own follow vLLM's latest."""
    if engine.startswith("sglang"):
        return SGLANG
    return _BY_ENGINE.get(engine, VLLM)


def rules_of_release(engine: str, release: tuple[int, ...]) -> MemoryRules:
    """Return the rules of a release of `vllm` or `sglang`, as (major, minor, ...)."""
    if engine == "sglang":
        return SGLANG
    minor = release[:2]
    if minor >= (0, 21):
        return VLLM
    if minor >= (0, 18):
        return VLLM_17_TO_20
    return VLLM_17 if minor == (0, 17) else VLLM_BEFORE_17


KERNELS_BYTES = round(0.2 * GIB)
"""Kernel images and library workspaces of one process [assumption, of the size that a measured Llama-2-7B run
of vLLM 0.15.1 on one H100 leaves unexplained; not fitted to any other run]."""

NCCL_BYTES = {1: 0, 2: 342 << 20}
NCCL_BYTES_MORE = 392 << 20
"""Communication buffers by ranks (aiconfigurator-core 0.12.0, systems/h100_sxm.yaml, `nccl_mem`)."""

GRAPH_BYTES_PER_LAYER = 256 << 10
"""CUDA graph memory per captured size and layer [assumption: 51 sizes of a 32-layer model then take 0.4 GiB;
public vLLM logs show 0.3 to 1.0 GiB in all]."""
GRAPH_SIZES_LIMIT = 512
"""Largest captured size in tokens; 1024 on the SM 100 family (vLLM 0.33)."""


def rotary_table_bytes(spec: ModelSpec) -> int:
    """Return the table of sines and cosines of every position: positions x rotary width x 2 B (vLLM)."""
    if spec.learned_positions:
        return 0
    widths = [_rotary_width(attention) for group in spec.layers for attention in group.attentions]
    return 2 * spec.max_position_embeddings * max(widths)


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
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, limit + 1, 16)]
    return sum(size <= limit for size in sizes)


def nccl_bytes(ranks: int) -> int:
    """Return the communication buffers of a GPU that talks to `ranks` - 1 others."""
    return NCCL_BYTES.get(ranks, NCCL_BYTES_MORE)
