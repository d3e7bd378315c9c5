"""Settings of the vLLM policy, under vLLM's own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simserve.errors import ScenarioError
from simserve.policy.base import PolicyParams
from simserve.policy.vllm.not_modelled import why_not


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
    def published_token_budget(self) -> int:
        """The token budget of one step."""
        return self.max_num_batched_tokens

    def check_lengths(self, max_model_len: int) -> None:
        """Refuse what vLLM refuses to start with (`SchedulerConfig.verify_max_model_len`)."""
        budget, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if not self.enable_chunked_prefill and budget < max_model_len:
            raise ScenarioError(
                f"max_num_batched_tokens = {budget:,}, allowed without chunked prefill is max_model_len "
                f"({max_model_len:,}) or more, for a prompt must fit in one step; lower max_model_len, "
                "or set enable_chunked_prefill: true"
            )
        if budget < seqs:
            raise ScenarioError(
                f"max_num_seqs = {seqs:,}, allowed is at most max_num_batched_tokens ({budget:,})"
            )
        if self.max_num_active_seqs is not None and self.max_num_active_seqs > seqs:
            active = self.max_num_active_seqs
            raise ScenarioError(
                f"max_num_active_seqs = {active:,}, allowed is at most max_num_seqs ({seqs:,})"
            )
        if self.long_prefill_token_threshold > max_model_len and self.version == "0.33":
            raise ScenarioError(
                f"long_prefill_token_threshold = {self.long_prefill_token_threshold:,}, allowed is at most "
                f"max_model_len ({max_model_len:,})"
            )

    @model_validator(mode="after")
    def _known_to_the_version(self) -> VllmParams:
        """Refuse options that the version does not have, unless they are at their default."""
        for name in _UNKNOWN[self.version]:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"vLLM {self.version} has no option {name}")
        return self


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
