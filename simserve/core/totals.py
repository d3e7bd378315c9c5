"""Totals of replicas, their KV tiers and groups, and the constants of pools that ratios of them need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Timeline:
    """State of one replica over time: one row per run of equal steps, or per bin once they are many.

    All columns have length m. Counts hold from `start_ns` to `end_ns`.
    """

    start_ns: Int64
    end_ns: Int64
    running: Float64
    """Requests running (time-weighted mean where rows were merged)."""
    waiting: Float64
    """Requests in the queue, time-weighted: one that came inside the interval counts in part."""
    kv_used_blocks: Float64
    prefill_tokens: Float64
    """Prompt tokens computed in the interval."""
    decode_tokens: Float64
    """Output tokens computed in the interval (those of decode steps)."""
    steps: Float64


@dataclass(frozen=True)
class TierResult:
    """Totals of one KV tier below HBM, as one replica used it."""

    kind: str
    """cpu, ssd or remote."""
    shared_by: str
    """Who shares the store: replica (nobody), node or cluster."""
    capacity_blocks: int
    block_bytes: int
    used_blocks: int
    """Blocks in the store at the end, whoever put them there."""
    hit_tokens: int
    """Tokens loaded into HBM instead of being computed."""
    refused_tokens: int
    """Tokens that were there for an admitted request, but computing them again was faster."""
    read_bytes: int
    written_bytes: int
    """From HBM or the tier above."""
    promoted_blocks: int
    """Copies kept of what a lower tier sent through this one."""
    evicted_blocks: int
    """Blocks dropped for room; they are offered to the tier below."""
    moved_up_blocks: int
    """Blocks that left because HBM has them (exclusive tiers)."""
    read_link_ns: int
    """Time that the links were busy with reads, of all who share them."""
    write_link_ns: int
    """Time that the links need for all that was written; more than the run lasted means too slow."""


@dataclass(frozen=True)
class DraftResult:
    """Totals of speculative decoding on one replica."""

    verifications: int
    """Sequences that verified drafts, over all steps; those whose answer had ended are not counted."""
    drafted_tokens: int
    """Drafts that were verified."""
    accepted_tokens: int
    """Drafts that were accepted, those beyond the end of an answer too (as engines count them)."""
    context_reads: int
    """Sum of contexts read: the tokens of a verification share one reading, so less than `decode_pairs`."""


@dataclass(frozen=True)
class ReplicaResult:
    """Totals of one replica."""

    name: str
    pool: str
    gpus: int
    kv_blocks: int
    """Usable KV blocks."""
    block_size: int
    steps: int
    wakeups: int
    """Times that the replica's process ran: the cost of the simulation."""
    busy_ns: int
    prefill_tokens: int
    """Prompt tokens computed, recomputed ones included, padding not."""
    decode_tokens: int
    recomputed_tokens: int
    preemptions: int
    linear_tokens: int
    """Tokens that went through the model, padding not included (the model FLOPs' n)."""
    prefill_pairs: int
    """(query, key) pairs attended by prompt tokens in one layer with full attention."""
    decode_pairs: int
    """The same for decode steps: the sum of contexts attended by the tokens that they show."""
    timeline: Timeline
    kv_tiers: tuple[TierResult, ...] = ()
    """KV tiers below HBM, fastest first."""
    drafting: DraftResult | None = None
    """What it drafted and verified; None: it does not speculate."""
    waited_ns: tuple[int, ...] = ()
    """Time in which somebody waited, by what the head of the queue waited for (`WaitReason`)."""


@dataclass(frozen=True)
class GroupResult:
    """Totals of one group of attention ranks that step together (each rank is a replica of the result)."""

    name: str
    pool: str
    ranks: int
    steps: int
    """Steps of the group; a rank without work joins them with a dummy batch."""
    busy_ns: int
    phases_ns: dict[str, int]
    """Time of slowest rank, shared expert, dispatch, experts and combine, before any overlap of them."""
    gamma: tuple[float, ...]
    """Mean load of the busiest expert rank over the mean rank's, per MoE layer; empty: taken as even."""
    rebalances: int
    skipped_rebalances: int
    moved_bytes: int
    """Expert weights that rebalances moved, all ranks together."""
    blocked_ns: int
    """Time in which steps waited for moved weights."""
    ffn_gpus: int = 0
    """GPUs that compute the FFN layers of all ranks; 0: the ranks do it themselves."""


@dataclass(frozen=True)
class PoolFacts:
    """Constants of one pool's deployment that utilisation figures need."""

    pool: str
    replicas: int
    gpus_per_replica: int
    gpu: str
    peak_flops: float
    """FLOP/s of one GPU at the dtype of the weights (vendor figure, dense)."""
    hbm_bytes_per_s: float
    """Bytes/s of one GPU (vendor figure)."""
    flops_per_token: float
    """Model FLOPs of one token outside attention scores, one replica, head included."""
    flops_per_pair: float
    """Model FLOPs of one (query, key) pair, summed over layers."""
    weight_bytes: float
    """Weights that every step must read (routed experts not counted), all GPUs of a replica together."""
    kv_bytes_per_token: float
    """KV of one token, all GPUs of a replica together."""
    price_per_gpu_hour: float | None = None
    expert_bytes: float = 0.0
    """Routed experts, all GPUs of a replica together; a step reads those that its tokens pick."""
    expert_share: float = 0.0
    """Share of a layer's routed experts that one token picks."""
    expert_ranks: int = 1
    """Replicas whose tokens meet at the experts (attention ranks of a group)."""
    max_running: int | None = None
    """Requests that the scheduler of one replica runs at once, if it has such a limit."""
    beside_gpus: int = 0
    """GPUs that all replicas share beside their own: the FFN GPUs of attention-FFN disaggregation."""
    beside_flops: float = 0.0
    """FLOP/s of all of these together."""
    beside_bytes_per_s: float = 0.0
    beside_price_per_hour: float = 0.0
    """Of all of them, if `price_per_gpu_hour` is given."""


# Steps of all replicas in a window of a run, as columns: what a timeline draws.


@dataclass(frozen=True)
class Steps:
    """One row per engine step, or per run of equal steps where the steps would be too many.

    Columns have length n, ordered by replica, then by time. Rows of one replica never overlap.
    """

    replicas: tuple[str, ...]
    """Names that `replica` counts."""
    replica: Int64
    start_ns: Int64
    end_ns: Int64
    steps: Int64
    """Engine steps in the row; more than 1 only where runs of steps were kept whole."""
    sequences: Int64
    """Sequences that computed one token each (padding included)."""
    context: Int64
    """Sum over those sequences of the tokens attended, in the row's first step."""
    chunks: Int64
    """Prompts, or parts of prompts, computed in the step."""
    prompt_tokens: Int64
    """Tokens of those chunks."""
    admitted: Int64
    """Requests that left the queue in the step."""
    preempted: Int64
    """Requests whose KV was freed before the step."""
    running: Int64
    """This and the following are those at the end of the run of equal steps that the row belongs to."""
    waiting: Int64
    kv_used_blocks: Int64
    """Blocks held in the first step of that run."""
    cut_ns: int | None = None
    """Time at which recording stopped because there were too many steps; None: it holds the whole window."""

    def __len__(self) -> int:
        return len(self.replica)


# Which shares of peak rates the best kernels reach: the roofline and the names of limits are held to them.
#
# FlashMLA's README (April 2026) reports 660 of 989 TFLOP/s and 3.0 of 3.35 TB/s on H800.

COMPUTE_EFFICIENCY = 0.67
"""Share of peak FLOP/s."""
MEMORY_EFFICIENCY = 0.9
"""Share of HBM bandwidth."""
