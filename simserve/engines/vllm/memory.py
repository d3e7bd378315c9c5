"""What vLLM sets aside before it gives the rest of the memory to the KV cache, by release.

`gpu_memory_utilization` x HBM minus weights, a profiled activation peak and, since 0.21, an estimate of the
CUDA graphs (`VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS`). Before 0.21 graphs came out of the rest. Rules were
read in the wheels of 0.15.1, 0.19.0 and 0.33.0; constants from logs name them (docs/memory.md has the list).
"""

from __future__ import annotations

from dataclasses import replace

from simserve.engines.vllm.packed import PackedGroups
from simserve.model.memory_rules import FILTERING_SAMPLER, MemoryRules
from simserve.units import GIB

_SORTING_SAMPLER = 38
"""Logits in 16 and 32 bit (6), sorted values and 64-bit indices (12), the sort's second buffer (12),
probabilities (4) and their sums (4): Qwen3-14B peaks at 5.64 GiB in vLLM 0.15 and 0.16 (llm-d-planner,
version sweep on H100)."""
_KERNELS_BEFORE_18, _KERNELS = round(0.13 * GIB), round(0.25 * GIB)
"""`non-torch` of one H100 alone: 0.13 GiB in vLLM 0.11 to 0.17, 0.24 to 0.27 in 0.18 and 0.19 (same
sweeps)."""
_JOINED_KERNELS = round(0.07 * GIB)
"""The same of a pipeline's stages in 0.19 (Llama-3.1-8B, pp 2 and 4)."""
_PEERS = round(2.03 * GIB)
"""What tp 2 and 4 add to that in 0.19: 2.00 and 2.06 GiB for Llama-3.1-8B (same sweep); other models there
are within 0.1 GiB. Taken for 0.17 and from 0.21 on too [assumption]. GPUs without NVLink, and those before
Hopper, which have no symmetric memory in vLLM (`SYMM_MEM_ALL_REDUCE_MAX_SIZES`): communication buffers."""

_NEWEST = MemoryRules(
    "vLLM since 0.33",
    activation_inside=True,
    graphs_inside=True,
    logit_bytes=FILTERING_SAMPLER,
    filters=True,
    keeps_expert_buffers=True,
    bufferless=("nf4", "mxfp4"),
    kernels_bytes=_KERNELS,
    joined_kernels_bytes=_JOINED_KERNELS,
    peer_bytes=_PEERS,
    mxfp4="triton",
    packed=PackedGroups(steps=2),
)
_FROM_21 = replace(
    _NEWEST, name="vLLM 0.21 to 0.32", bufferless=MemoryRules.bufferless, packed=PackedGroups(steps=1)
)
"""When int4 experts got buffers is known to lie between 0.19 and 0.33; a start of 0.24 has none."""
_FROM_18 = replace(_FROM_21, name="vLLM 0.17 to 0.20", graphs_inside=False, packed=None)
_IN_17 = replace(_FROM_18, name="vLLM 0.17", kernels_bytes=_KERNELS_BEFORE_18)
_BEFORE_17 = replace(
    _FROM_18,
    name="vLLM before 0.17",
    logit_bytes=_SORTING_SAMPLER,
    filters=False,
    kernels_bytes=_KERNELS_BEFORE_18,
    joined_kernels_bytes=None,
    peer_bytes=0,
)
_BEFORE_14 = replace(_BEFORE_17, name="vLLM before 0.14", keeps_expert_buffers=False, mxfp4="marlin")
"""0.10.1 names Marlin for gpt-oss on an H100, 0.14.1 Triton (vllm issues 23278, 33155)."""

_SINCE = (
    ((0, 33), _NEWEST),
    ((0, 21), _FROM_21),
    ((0, 18), _FROM_18),
    ((0, 17), _IN_17),
    ((0, 14), _BEFORE_17),
)


def memory_rules(release: tuple[int, ...] | None) -> MemoryRules:
    """Return the rules of a release, as (major, minor, ...); None: the newest."""
    if release is None:
        return _NEWEST
    return next((rules for first, rules in _SINCE if release[:2] >= first), _BEFORE_14)
