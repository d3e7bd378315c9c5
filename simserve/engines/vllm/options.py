"""Settings of the vLLM policy, under vLLM's own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from simserve.engines.base import PolicyParams
from simserve.errors import ScenarioError, SettingError

# Options of vLLM that bear on scheduling or the KV cache and are not modelled, and why.
#
# Read in the wheels of vLLM 0.15.1, 0.19.0 and 0.33.0: `config/scheduler.py`, `config/cache.py`, and the
# names
# of the command line in `engine/arg_utils.py`.

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
    if "lora" in option:
        return "an option for adapters, which are not simulated"
    found = NOT_MODELLED.get(option)
    if found is None:
        return None
    if version not in found.versions:
        return f"an option that vLLM {version} does not have"
    return f"an option of vLLM {version} that is not modelled: {found.reason}"


class VllmParams(PolicyParams):
    """Scheduler options of vLLM V1; an option that is not modelled does not exist here and is refused."""

    version: Literal["0.33", "0.19", "0.15"] = Field(
        default="0.33", description="Release whose scheduler is followed where releases differ."
    )
    max_num_batched_tokens: int = Field(default=8192, ge=1, description="Token budget of one step.")
    max_num_seqs: int = Field(default=1024, ge=1, description="Most requests that run at once.")
    enable_chunked_prefill: bool = Field(
        default=True, description="Cut prompts that exceed the rest of the budget; if off they wait for room."
    )
    enable_prefix_caching: bool = Field(
        default=True, description="Keep full blocks and reuse them where prompts say what they hold."
    )
    long_prefill_token_threshold: int = Field(
        default=0, ge=0, description="Most prompt tokens of one request in a step; 0 = no limit."
    )
    long_prefill_token_threshold_adaptive: bool = Field(
        default=False,
        description="Raise that threshold to each request's fair share of the budget (0.33).",
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        default="fcfs", description="Order of the waiting queue; priority: lower values go first."
    )
    scheduler_reserve_full_isl: bool = Field(
        default=True,
        description="Admit a request only when its whole known sequence fits, not just its next chunk "
        "(does not exist in 0.15, where only the chunk counts).",
    )
    async_scheduling: bool = Field(
        default=False,
        description="Plan each step while the one before runs, so that decisions lag one step behind. "
        "No effect with pipeline stages, whose microbatches overlap anyway.",
    )
    max_num_scheduled_tokens: int | None = Field(
        default=None, ge=1, description="Replaces max_num_batched_tokens as the budget (not in 0.15)."
    )
    max_num_active_seqs: int | None = Field(
        default=None, ge=1, description="Most requests that run at once, if lower than max_num_seqs (0.33)."
    )
    prefill_schedule_interval: int = Field(
        default=1,
        ge=1,
        description="While somebody decodes, compute prompts every so many steps (0.33).",
    )
    watermark: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the blocks that admissions leave free while somebody runs (0.33 only).",
    )
    disable_hybrid_kv_cache_manager: bool = Field(
        default=False,
        description="Keep the KV of all tokens in window layers too; needed where the engine cannot do else.",
    )
    prefix_cache_retention_interval: Annotated[int, Field(ge=0)] | Literal["all"] = Field(
        default=0,
        description="Window layers cache only blocks that a prompt or a fork ends with (0), also those every "
        "so many tokens, or all (in 0.33, where all is None; older versions cache all).",
    )
    performance_mode: Literal["balanced", "interactivity", "throughput"] = Field(
        default="balanced",
        description="throughput doubles the default token budget and max_num_seqs (not in 0.15); "
        "interactivity captures more CUDA graphs, which are not modelled one by one.",
    )

    @classmethod
    def why_not(cls, option: str, settings: Mapping[str, Any]) -> str | None:
        """Return why one of vLLM's own options is refused (see `not_modelled`)."""
        return why_not(option, settings.get("version", cls.model_fields["version"].default))

    @property
    def most_sequences(self) -> int:
        """`max_num_seqs`."""
        return self.max_num_seqs

    def tokens_per_step(self, longest: int) -> int:
        """Return `max_num_batched_tokens`."""
        return self.max_num_batched_tokens

    prefix_caching_option: ClassVar[str] = "enable_prefix_caching: true"

    @property
    def caches_prefixes(self) -> bool:
        """`enable_prefix_caching`."""
        return self.enable_prefix_caching

    @property
    def retention_interval(self) -> int | None:
        """`prefix_cache_retention_interval`."""
        interval = self.prefix_cache_retention_interval
        return interval if isinstance(interval, int) else None

    @property
    def published_token_budget(self) -> int:
        """The token budget of one step."""
        return self.max_num_batched_tokens

    def check_lengths(self, max_model_len: int) -> None:
        """Refuse what vLLM refuses to start with (`SchedulerConfig.verify_max_model_len`)."""
        budget, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if not self.enable_chunked_prefill and budget < max_model_len:
            raise ScenarioError(
                f"is less than max_model_len ({max_model_len:,}), but without chunked prefill a prompt must "
                "fit in one step; raise it, lower max_model_len, or set enable_chunked_prefill: true",
                "max_num_batched_tokens",
                budget,
            )
        if budget < seqs:
            raise _too_many("max_num_seqs", seqs, "max_num_batched_tokens", budget)
        if self.max_num_active_seqs is not None and self.max_num_active_seqs > seqs:
            raise _too_many("max_num_active_seqs", self.max_num_active_seqs, "max_num_seqs", seqs)
        if self.long_prefill_token_threshold > max_model_len and self.version == "0.33":
            threshold = self.long_prefill_token_threshold
            raise _too_many("long_prefill_token_threshold", threshold, "max_model_len", max_model_len)

    @model_validator(mode="after")
    def _known_to_the_version(self) -> VllmParams:
        """Refuse options that the version does not have, unless they are at their default."""
        for name in _UNKNOWN[self.version]:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise SettingError(f"is not an option of vLLM {self.version}", name, getattr(self, name))
        return self


def _too_many(key: str, value: int, other: str, most: int) -> ScenarioError:
    return ScenarioError(key=key, value=value, allowed=f"at most {other} ({most:,})")


_UNKNOWN = {
    "0.33": (),
    "0.19": (
        "watermark",
        "max_num_active_seqs",
        "prefill_schedule_interval",
        "long_prefill_token_threshold_adaptive",
        "prefix_cache_retention_interval",
    ),
    "0.15": (
        "watermark",
        "max_num_active_seqs",
        "prefill_schedule_interval",
        "long_prefill_token_threshold_adaptive",
        "prefix_cache_retention_interval",
        "max_num_scheduled_tokens",
        "scheduler_reserve_full_isl",
        "performance_mode",
    ),
}
"""Options that a version does not know (seen in its configuration classes)."""
