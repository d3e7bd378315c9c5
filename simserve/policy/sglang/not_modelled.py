"""Options of SGLang 0.5.23 that bear on scheduling or the KV cache and are not modelled, and why.

Read in its wheel: `srt/arg_groups/fields/schedule.py` and `memory.py`, and the choices in `choices.py`.
"""

from __future__ import annotations

_DELAY = "prefills are not held back to batch them"
_MAMBA = "states of linear attention are not cached by prefix"
_SWA = "pools of window layers are not kept apart"
_TIERS = "tiers below HBM are the pool's kv_tiers and kv_tier_policy"
_OTHER_CACHE = "the cache is the radix tree, with the pool's kv_tiers below it"
_FRONT = "tokens are shown as they are made; the client's time is `overhead`'s"

NOT_MODELLED: dict[str, str] = {
    # the scheduler
    "max_queued_requests": "requests are never turned away at the front end; they queue",
    "prefill_decode_interval": _DELAY,
    "prefill_decode_interval_min_bs": _DELAY,
    "enable_dynamic_chunking": "pipeline parallelism is not modelled for this engine",
    "prefill_max_requests": "prefills are bounded by tokens and by max_running_requests",
    "default_priority_value": "priorities are the trace's",
    "abort_on_priority_when_disabled": "priorities are ignored where enable_priority_scheduling is off",
    "retraction_policy": "victims are chosen by length, the default",
    "num_continuous_decode_steps": "one step is decided at a time, the default",
    "scheduler_recv_interval": "arrivals are seen by the next decision",
    "enable_prefill_delayer": _DELAY,
    "prefill_delayer_max_delay_passes": _DELAY,
    "prefill_delayer_token_usage_low_watermark": _DELAY,
    "prefill_delayer_queue_min_ratio": _DELAY,
    "prefill_delayer_max_delay_ms": _DELAY,
    "min_free_slots_delay": _DELAY,
    "stream_interval": _FRONT,
    "speculative_algorithm": "speculative decoding is simulated with vLLM's scheduler only",
    "enable_lora": "adapters are not simulated",
    # the KV cache
    "max_total_tokens": "tokens follow from memory: set gpu_memory_utilization of the pool",
    "radix_eviction_policy_config": "rules have the engine's default parameters",
    "disable_chunked_prefix_cache": "attention kernels are the profile's",
    "prefill_only_disable_kv_cache": "every request has a KV cache",
    "enable_session_radix_cache": "sessions are kept like any other content",
    "radix_cache_backend": _OTHER_CACHE,
    "enable_unified_memory": _SWA,
    "enable_page_major_kv_layout": "the layout of the cache does not change its size",
    "swa_full_tokens_ratio": _SWA,
    "swa_prefix_tails": _SWA,
    "disable_hybrid_swa_memory": _SWA,
    "max_mamba_cache_size": _MAMBA,
    "mamba_full_memory_ratio": _MAMBA,
    "enable_hisparse": "sparse attention over host memory is not simulated",
    # tiers
    "enable_hierarchical_cache": _TIERS,
    "hicache_ratio": _TIERS,
    "hicache_size": _TIERS,
    "hicache_host_memory_mode": _TIERS,
    "hicache_host_memory_fraction": _TIERS,
    "hicache_write_policy": _TIERS,
    "hicache_io_backend": _TIERS,
    "hicache_mem_layout": _TIERS,
    "hicache_storage_backend": _TIERS,
    "hicache_storage_prefetch_policy": "loads are waited for, or not begun where computing is faster",
    "enable_lmcache": _OTHER_CACHE,
    "enable_flexkv": _OTHER_CACHE,
    "enable_unified_cache_external_linker": _OTHER_CACHE,
}

ELSEWHERE = {
    "mem_fraction_static": "is the pool's gpu_memory_utilization",
    "page_size": "is called block_size",
    "context_length": "is the pool's max_model_len",
    "kv_cache_dtype": "is the pool's kv_dtype",
    "tp_size": "is the pool's tp",
    "pp_size": "is the pool's pp",
    "dp_size": "is the pool's dp",
    "ep_size": "is the pool's ep",
    "enable_dp_attention": "is the pool's dp",
    "enable_two_batch_overlap": "is the pool's overlap.two_batch",
}
"""Options that a scenario says under another name or in another place."""


def why_not(option: str) -> str | None:
    """Return why the option is refused; None if it is not in these lists."""
    if option in ELSEWHERE:
        return f"an option of SGLang that {ELSEWHERE[option]} here"
    reason = NOT_MODELLED.get(option)
    return reason and f"an option of SGLang 0.5.23 that is not modelled: {reason}"
