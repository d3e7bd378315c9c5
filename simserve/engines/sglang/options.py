"""What a server of SGLang 0.5.23 works out from GPU, degrees and model before its scheduler starts.

Read in its wheel, `srt/arg_groups/`: `memory_hook.py`, `cuda_graph_hook.py`, `parallel_hook.py`,
`overrides.py` and `model_override_base.py`. Rules for kernels or models that are not simulated are left out;
docs/engines.md has every rule, and which are followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from simserve.engines.base import Placement, PolicyParams
from simserve.engines.sglang.memory import PACKED_PAGE_TOKENS
from simserve.errors import ScenarioError
from simserve.units import GIB

# Options of SGLang 0.5.23 that bear on scheduling or the KV cache and are not modelled, and why.
#
# Read in its wheel: `srt/arg_groups/fields/schedule.py` and `memory.py`, and the choices in `choices.py`.

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
    if "lora" in option:
        return "an option for adapters, which are not simulated"
    reason = NOT_MODELLED.get(option)
    return reason and f"an option of SGLang 0.5.23 that is not modelled: {reason}"


# Settings of the SGLang scheduler under SGLang's own names, with the defaults of version 0.5.23.
#
# An option that is not modelled does not exist here and is refused. The size of the KV pool and `page_size`
# are
# not settings of the scheduler: they come from the replica's memory and its block size.

INIT_RATIO = 0.7
"""New-token ratio at the start, at conservativeness 1."""
MIN_RATIO_FACTOR = 0.14
"""Its floor as a share of the start."""
DECAY_STEPS = 600
"""Decode steps in which it falls from the start to the floor."""
CLIP_MAX_NEW_TOKENS = 4096
"""Output tokens of one request that an admission reserves at most."""
RETRACT_DECODE_STEPS = 20
"""Decode steps that a retraction makes room for and grants each remaining request when it sets the ratio."""
DP_CONSERVATIVENESS = 0.3
"""Factor on `schedule_conservativeness` with attention data parallelism."""
MOST_MATCHED = 128
"""Longest queue that lpm sorts (a longer one stays in order of arrival), and most prompts of a refresh."""
REFRESH_INTERVAL = 32
"""Orderings of a queue from one refresh of its prompts to the next."""
IN_BATCH_TOKENS = 32
"""Cached tokens up to which, and common tokens from which, a request is deferred behind a similar one."""

SchedulePolicy = Literal["fcfs", "lpm", "dfs-weight", "lof", "random"]
"""Not modelled: priority, routing-key, hrrn, shortest-prefill-first."""
EvictionPolicy = Literal["lru", "lfu", "fifo", "filo", "mru", "slru", "priority"]
"""Choices of the server: lru, lfu, slru, priority, and tlru (not modelled); the others exist in its code."""


class SglangParams(PolicyParams):
    """Scheduler options of SGLang."""

    max_running_requests: int = Field(default=2048, ge=1, description="Most requests that decode at once.")
    chunked_prefill_size: int = Field(
        default=8192, ge=-1, description="Prompt tokens of one step; -1: prompts are not cut."
    )
    max_prefill_tokens: int = Field(
        default=16384, ge=1, description="Prompt tokens of one step that admit a further request."
    )
    prompts_within_max_prefill: bool = Field(
        default=False,
        description="Admit a further prompt only if it is shorter than what is left of max_prefill_tokens, as"
        " 0.5.6 does; 0.5.23 asks so only where prompts are not cut.",
    )
    schedule_policy: SchedulePolicy = Field(default="fcfs", description="Order of the waiting queue.")
    schedule_conservativeness: float = Field(
        default=1.0, ge=0, description="Factor on the share of the output reserved for running requests."
    )
    disable_radix_cache: bool = Field(default=False, description="Turn the prefix cache off.")
    radix_eviction_policy: EvictionPolicy = Field(
        default="lru", description="Which unused leaf of the prefix cache goes first."
    )
    enable_mixed_chunk: bool = Field(default=False, description="Let decodes share the prefill steps.")
    disable_overlap_schedule: bool = Field(
        default=False, description="Process a step's result before the next is chosen, not after."
    )
    enable_priority_scheduling: bool = Field(
        default=False, description="Order the queue by priority; higher values go first."
    )
    schedule_low_priority_values_first: bool = Field(default=False, description="Lower values go first.")
    disable_priority_preemption: bool = Field(
        default=False, description="Never stop a running request for a more urgent one."
    )
    priority_scheduling_preemption_threshold: int = Field(
        default=10, ge=0, description="Lead in priority beyond which a running request is stopped."
    )
    random_seed: int = Field(default=0, description="Seed of the order `random`.")
    ignore_eos: bool = Field(
        default=False,
        description="Whether the clients set ignore_eos: every answer is taken to use all its tokens.",
    )

    @classmethod
    def why_not(cls, option: str, settings: Mapping[str, Any]) -> str | None:
        """Return why one of SGLang's own options is refused (see `not_modelled`)."""
        return why_not(option)

    @property
    def most_sequences(self) -> int:
        """`max_running_requests`."""
        return self.max_running_requests

    def tokens_per_step(self, longest: int) -> int:
        """Return `chunked_prefill_size`, or one prompt of the `longest` tokens without chunks."""
        return self.chunked_prefill_size if self.chunked_prefill_size > 0 else longest

    prefix_caching_option: ClassVar[str] = "disable_radix_cache: false"

    @property
    def caches_prefixes(self) -> bool:
        """True unless `disable_radix_cache`."""
        return not self.disable_radix_cache

    @property
    def published_token_budget(self) -> int:
        """What Dynamo's SGLang worker publishes as max_num_batched_tokens."""
        return self.max_prefill_tokens

    def of_rank(self, dp: int) -> SglangParams:
        """Share chunk and requests among attention ranks, and expect less output: all wait for the slowest.

        Follows `parallel_hook.py` (chunk, conservativeness) and `kv_cache_configurator.py` (requests).
        """
        if dp == 1:
            return self
        chunk = self.chunked_prefill_size
        if 0 < chunk < dp:
            raise ScenarioError(
                f"is too little for dp = {dp} ranks to share", "chunked_prefill_size", chunk, f"{dp} or more"
            )
        return self.model_copy(
            update={
                "chunked_prefill_size": chunk // dp,
                "max_running_requests": max(1, self.max_running_requests // dp),
                "schedule_conservativeness": self.schedule_conservativeness * DP_CONSERVATIVENESS,
            }
        )

    @model_validator(mode="after")
    def _check(self) -> SglangParams:
        if self.chunked_prefill_size == 0:
            raise ValueError("chunked_prefill_size is 0; give a positive number of tokens, or -1 for none")
        if self.enable_priority_scheduling and self.schedule_policy not in ("fcfs", "lof"):
            raise ValueError(
                f"enable_priority_scheduling needs schedule_policy fcfs or lof, not {self.schedule_policy}"
            )
        return self


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
_COMPRESSED_SEQUENCES = 256
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


def running_requests(placement: Placement) -> dict[str, Any]:
    """Return the default `max_running_requests` of a server, where it is not the option's own.

    256 with compressed attention (`arg_groups/deepseek_v4_hook.py`); attention ranks have theirs each.
    """
    if placement.compressed:
        return {"max_running_requests": _COMPRESSED_SEQUENCES}
    return {"max_running_requests": RANK_SEQUENCES * placement.dp} if placement.dp > 1 else {}


def page_tokens(placement: Placement) -> int:
    """Return the default `page_size`: what the attention kernels chosen for GPU and model work with.

    TensorRT-LLM's kernels (compute capability 10.x; of latent attention those of DeepSeek-V3's classes) and
    sparse attention take pages of 64 tokens, compressed attention of 256, all others single tokens.
    """
    if placement.compressed:
        return PACKED_PAGE_TOKENS
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
    if placement.role != "decode" and placement.pp == 1 and not (placement.two_batch or placement.compressed):
        captured = min(chunk, 8192) if placement.mla else chunk
        mib += _MLA_PREFILL_GRAPHS_MIB if placement.mla else _MIB_PER_PREFILL_GRAPH * prefill_graphs(captured)
    free = mib * _MIB
    if gpu_memory_bytes > 60 * GIB:
        free = max(free, _LEAST_FREE_GIB * GIB)
    return round(1 - free / gpu_memory_bytes, 3)
