"""Settings of the SGLang scheduler under SGLang's own names, with the defaults of version 0.5.23."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simserve.policy.base import PolicyParams

INIT_RATIO = 0.7
MIN_RATIO_FACTOR = 0.14
DECAY_STEPS = 600
CLIP_MAX_NEW_TOKENS = 4096
"""Output tokens that an admission reserves at most."""
RETRACT_DECODE_STEPS = 20
"""Decode steps that each remaining request is granted when the ratio is set after a retraction."""
LPM_QUEUE_LIMIT = 128
"""Longest queue that lpm sorts; beyond it the queue stays in order of arrival."""
IN_BATCH_TOKENS = 32
"""Cached tokens up to which, and common tokens from which, lpm defers a request behind a similar one."""

SchedulePolicy = Literal["fcfs", "lpm", "dfs-weight", "lof", "random"]
EvictionPolicy = Literal["lru", "lfu", "fifo", "filo", "mru", "slru", "priority"]


class Params(PolicyParams):
    """What decides the schedule."""

    max_total_tokens: int = Field(gt=0)
    """KV tokens of the pool."""
    max_running_requests: int = Field(gt=0)
    chunked_prefill_size: int = 8192
    """Prompt tokens per step; -1 turns chunking off."""
    max_prefill_tokens: int = Field(16384, gt=0)
    page_size: int = Field(1, gt=0)
    schedule_policy: SchedulePolicy = "fcfs"
    schedule_conservativeness: float = Field(1.0, ge=0)
    disable_radix_cache: bool = False
    radix_eviction_policy: EvictionPolicy = "lru"
    enable_mixed_chunk: bool = False
    disable_overlap_schedule: bool = False
    enable_priority_scheduling: bool = False
    disable_priority_preemption: bool = False
    priority_scheduling_preemption_threshold: int = 10
    schedule_low_priority_values_first: bool = False
    ignore_eos: bool = False
    """Whether the clients ask to ignore the end token (a property of the requests, not of the server)."""
    random_seed: int = 0
