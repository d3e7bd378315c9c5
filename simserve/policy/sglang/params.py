"""Settings of the SGLang scheduler under SGLang's own names, with the defaults of version 0.5.23.

An option that is not modelled does not exist here and is refused. The size of the KV pool and `page_size` are
not settings of the scheduler: they come from the replica's memory and its block size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from simserve.errors import ScenarioError
from simserve.policy.base import PolicyParams
from simserve.policy.sglang.not_modelled import why_not

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
                f"chunked_prefill_size = {chunk}, allowed is {dp} or more: dp = {dp} ranks share it"
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
