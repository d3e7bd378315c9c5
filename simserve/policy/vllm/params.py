"""Settings of the vLLM policy, under vLLM's own names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simserve.policy.base import PolicyParams


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
    policy: Literal["fcfs", "priority"] = Field(
        default="fcfs", description="Order of the waiting queue; priority: lower values go first."
    )
    scheduler_reserve_full_isl: bool = Field(
        default=True,
        description="Admit a request only when its whole known sequence fits, not just its next chunk "
        "(does not exist in 0.15, where only the chunk counts).",
    )
    watermark: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the blocks that admissions leave free while somebody runs (0.33 only).",
    )
