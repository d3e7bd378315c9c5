"""What a server of SGLang 0.5.23 works out from GPU, degrees and model before its scheduler starts.

Read in its wheel, `srt/arg_groups/`: `memory_hook.py`, `cuda_graph_hook.py`, `parallel_hook.py`,
`overrides.py` and `model_override_base.py`. Rules for kernels or models that are not simulated are left out;
docs/engines.md has every rule, and which are followed.
"""

from __future__ import annotations

from typing import Any

from simserve.policy.base import Placement
from simserve.units import GIB

_MIB = 1 << 20
RANK_SEQUENCES = 2048
"""Default `max_running_requests` of an attention rank."""
_CHUNKS = ((20, 2048), (60, 4096), (160, 8192))
"""chunked_prefill_size below so many GiB; 16384 from the last on."""
_GRAPHS = ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512))
"""Largest decode graph below so many GiB, with up to 3 GPUs and with more; from the last on 512."""
_LEAST_TOKENS = 2048
"""Activations are reserved for at least so many tokens."""
_METADATA_MIB = 512
_MIB_PER_TOKEN = 1.5
"""Activations per prompt token of a step."""
_MIB_PER_GRAPH_SEQUENCE = 2
_MIB_PER_PADDED_SEQUENCE = 3
"""Padding of attention data parallelism: per sequence of the largest decode graph and rank."""
_MANY_SEQUENCES = 300
_MIB_PER_PADDED_SEQUENCE_OF_MANY = 4.5
"""The same with more sequences than that in the graph."""
_MLA_PREFILL_GRAPHS_MIB = 1536
_MIB_PER_PREFILL_GRAPH = 8
_PAGE_TOKENS = 64
_TRTLLM_MLA = ("DeepseekV3ForCausalLM", "MistralLarge3ForCausalLM", "LongcatFlashForCausalLM")
"""Classes whose latent attention runs these kernels on Blackwell (`model_overrides/deepseek_v2.py`)."""
_LEAST_FREE_GIB = 10
"""Kept free at the least on cards of more than 60 GiB."""
_PREFILL_GRAPHS = (
    *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64),
    *range(1280, 4097, 256),
)  # fmt: skip
"""Tokens of the captured prefill graphs; beyond these every 512."""


def chunk_tokens(gpu_memory_bytes: int) -> int:
    """Return the default `chunked_prefill_size`, before attention ranks share it."""
    return next((tokens for gib, tokens in _CHUNKS if gpu_memory_bytes < gib * GIB), 16384)


def page_tokens(placement: Placement) -> int:
    """Return the default `page_size`: what the attention kernels chosen for GPU and model work with.

    TensorRT-LLM's kernels (compute capability 10.x; of latent attention those of DeepSeek-V3's classes) and
    sparse attention take pages of 64 tokens, all others single tokens.
    """
    if placement.sparse:
        return _PAGE_TOKENS
    if not 100 <= placement.sm_arch < 110:
        return 1
    return _PAGE_TOKENS if not placement.mla or placement.architecture in _TRTLLM_MLA else 1


def largest_decode_graph(gpu_memory_bytes: int, gpus: int, max_running_requests: int) -> int:
    """Return the most sequences of a decode step that a CUDA graph is captured for; `gpus` of one server."""
    sizes = ((few if gpus < 4 else many) for gib, few, many in _GRAPHS if gpu_memory_bytes < gib * GIB)
    return min(next(sizes, 512), max_running_requests)


def prefill_graphs(largest: int) -> int:
    """Return how many prefill graphs are captured for steps of up to `largest` tokens."""
    return sum(tokens <= largest for tokens in _PREFILL_GRAPHS) + max(0, (largest - 4096) // 512)


def static_share(gpu_memory_bytes: int, options: dict[str, Any], placement: Placement) -> float:
    """Return `mem_fraction_static`, to 3 decimals: what weights and KV cache may take of a GPU's memory.

    `options` are those of the server, before attention ranks share them.
    """
    gpus = placement.tp * placement.dp
    chunk, sequences = (
        options.get("chunked_prefill_size", -1),
        options.get("max_running_requests", RANK_SEQUENCES),
    )
    graphs = largest_decode_graph(gpu_memory_bytes, gpus, sequences)
    tokens = chunk if chunk > 0 else options.get("max_prefill_tokens", 16384)
    if placement.role == "decode":
        tokens = sequences if sequences < RANK_SEQUENCES * placement.dp else graphs
    mib = _METADATA_MIB + _MIB_PER_TOKEN * max(tokens, _LEAST_TOKENS) + gpus * placement.pp / 8 * 1024
    if placement.role != "prefill":
        mib += _MIB_PER_GRAPH_SEQUENCE * graphs
        if placement.dp > 1:
            many = graphs > _MANY_SEQUENCES
            padded = _MIB_PER_PADDED_SEQUENCE_OF_MANY if many else _MIB_PER_PADDED_SEQUENCE
            mib += padded * graphs * placement.dp
    if placement.role != "decode" and placement.pp == 1 and not placement.two_batch:
        captured = min(chunk, 8192) if placement.mla else chunk
        mib += _MLA_PREFILL_GRAPHS_MIB if placement.mla else _MIB_PER_PREFILL_GRAPH * prefill_graphs(captured)
    free = mib * _MIB
    if gpu_memory_bytes > 60 * GIB:
        free = max(free, _LEAST_FREE_GIB * GIB)
    return round(1 - free / gpu_memory_bytes, 3)
