"""Options of vLLM that bear on scheduling or the KV cache and are not modelled, and why.

Read in the wheels of vLLM 0.15.1, 0.19.0 and 0.33.0: `config/scheduler.py`, `config/cache.py`, and the names
of the command line in `engine/arg_utils.py`.
"""

from __future__ import annotations

from typing import NamedTuple

ALL = ("0.15", "0.19", "0.33")
OLD = ("0.15", "0.19")
NEW = ("0.33",)


class NotModelled(NamedTuple):
    """Why an option is refused, and the versions that have it."""

    reason: str
    versions: tuple[str, ...] = ALL


_PARTIAL = "the engine itself stops at any value but 1 (Concurrent Partial Prefill is unsupported)"
_QUEUE = "requests are never turned away at the front end; they queue"
_BLOCKS = "blocks follow from memory: set gpu_memory_utilization of the pool"
_MAMBA = "states of linear attention are not cached by prefix"
_FRONT = "tokens are shown as they are made; the client's time is `overhead`'s"
_TIERS = "tiers below HBM are the pool's kv_tiers"

NOT_MODELLED: dict[str, NotModelled] = {
    # the scheduler
    "max_num_partial_prefills": NotModelled(_PARTIAL, OLD),
    "max_long_partial_prefills": NotModelled(_PARTIAL, OLD),
    "max_num_queued_reqs": NotModelled(_QUEUE, NEW),
    "max_num_queued_tokens": NotModelled(_QUEUE, NEW),
    "scheduler_cls": NotModelled("name a policy by its dotted path instead: policy: package.module:Class"),
    "stream_interval": NotModelled(_FRONT),
    "disable_chunked_mm_input": NotModelled("inputs are text"),
    "structured_outputs_config": NotModelled("grammars are not simulated"),
    "enable_lora": NotModelled("adapters are not simulated"),
    "max_loras": NotModelled("adapters are not simulated"),
    "dp_sync_interval": NotModelled("ranks of a group stop stepping with the last request of all", NEW),
    # the KV cache
    "num_gpu_blocks_override": NotModelled(_BLOCKS),
    "kv_cache_memory_bytes": NotModelled(_BLOCKS),
    "prefix_match_unit": NotModelled("prefixes match in whole blocks: set block_size", NEW),
    "prefix_caching_hash_algo": NotModelled("content is compared exactly, whatever the hash"),
    "kv_cache_dtype_skip_layers": NotModelled("all layers have the pool's kv_dtype", ("0.19", "0.33")),
    "calculate_kv_scales": NotModelled("scales cost nothing here", OLD),
    "kv_sharing_fast_prefill": NotModelled("layers that share the cache of others are not simulated"),
    "swa_bounded_replay": NotModelled("no model with bounded replay is simulated", NEW),
    "disable_sliding_window": NotModelled("a window is the model's: change its config.json"),
    "disable_cascade_attn": NotModelled("attention kernels are the profile's"),
    "mamba_block_size": NotModelled(_MAMBA),
    "mamba_cache_dtype": NotModelled(_MAMBA),
    "mamba_ssm_cache_dtype": NotModelled(_MAMBA),
    "mamba_cache_mode": NotModelled(_MAMBA),
    "enable_mamba_shared_prefix_checkpoint": NotModelled(_MAMBA, NEW),
    "decode_context_parallel_size": NotModelled("context parallelism is not simulated"),
    "prefill_context_parallel_size": NotModelled("context parallelism is not simulated"),
    # tiers and hand-over
    "kv_offloading_size": NotModelled(_TIERS),
    "kv_offloading_backend": NotModelled(_TIERS),
    "kv_events_config": NotModelled("routers see the prefix cache as it is, or as old as their refresh_ms"),
    "swap_space": NotModelled("V1 does not swap: a preempted request is recomputed", ("0.15",)),
    "cpu_offload_gb": NotModelled("weights are in HBM"),
}

ELSEWHERE = {
    "policy": "is called scheduling_policy",
    "speculative_config": "is the pool's speculation",
    "spec_method": "is the pool's speculation.method",
    "spec_model": "is the pool's speculation.model",
    "spec_tokens": "is the pool's speculation.num_speculative_tokens",
    "gpu_memory_utilization": "is a key of the pool",
    "max_model_len": "is a key of the pool",
    "kv_cache_dtype": "is the pool's kv_dtype",
    "tensor_parallel_size": "is the pool's tp",
    "pipeline_parallel_size": "is the pool's pp",
    "data_parallel_size": "is the pool's dp",
    "enable_expert_parallel": "is the pool's ep",
    "enable_dbo": "is the pool's overlap.two_batch",
    "kv_transfer_config": "is the scenario's transfer between pools with roles, or the pool's kv_tiers",
}
"""Options that a scenario says under another name or in another place."""


def why_not(option: str, version: str) -> str | None:
    """Return why the option is refused; None if no version of vLLM has it in this list."""
    if option in ELSEWHERE:
        return f"an option of vLLM that {ELSEWHERE[option]} here"
    found = NOT_MODELLED.get(option)
    if found is None:
        return None
    if version not in found.versions:
        return f"an option that vLLM {version} does not have"
    return f"an option of vLLM {version} that is not modelled: {found.reason}"
