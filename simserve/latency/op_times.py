"""Where the busy time of a run went, by group of kernels: the steps that were taken, priced again by part.

Nothing is counted while the run goes on: how often each number of tokens and sequences was computed is known
anyway, and the rest of a step is attention, or what the engine adds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.latency.costs import LinearOp
from simserve.latency.table_latency import OVERHEAD, TableLatency

Int64 = NDArray[np.int64]


class Decoded(NamedTuple):
    """Steps of one decode page (see `StepLatency.decode_page`) that were taken."""

    sequences: int
    page: int
    visits: Int64
    """How often each step was taken, int64[PAGE]."""
    durations_ns: Int64
    level_ns: int = 0
    """What unequal contexts added to the attention of each."""


DECODE, MIXED, ENGINE, OTHER = (
    "attention, decode steps",
    "attention, steps with prompts",
    "engine overhead",
    "other kernels",
)
DRAFTS = "engine overhead and drafts"

_GROUPS = {
    "collectives": ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "dispatch", "combine"),
    "experts": ("routed experts", "router"),
    "MLP": ("MLP", "shared expert"),
    "norms": ("norm",),
    "embedding, head, sampling": ("embedding", "head", "sampling"),
    "attention projections": ("qkv", "q and", "q up", "kv", "KV write", "attention", "MLA glue", "rotary"),
}
"""Groups by words in the names of kernels, in the order in which they are tried."""


def group_of(kernel: str) -> str:
    """Return the group that a kernel by count belongs to."""
    return next((group for group, words in _GROUPS.items() if any(w in kernel for w in words)), OTHER)


def op_times(latency: TableLatency, decoded: Iterable[Decoded]) -> dict[str, float]:
    """Return ns by group of all steps taken: those that only decoded, and those that `step_ns` booked."""
    tokens: defaultdict[int, int] = defaultdict(int, latency.token_visits)
    sequences: defaultdict[int, int] = defaultdict(int, latency.sequence_visits)
    found: defaultdict[str, float] = defaultdict(float)
    rest = DRAFTS if getattr(latency, "drafts", None) else ENGINE
    for number, page, visits, durations_ns, level_ns in decoded:
        steps = int(visits.sum())
        run_tokens, sampled = latency.decode_counts(number)
        tokens[run_tokens] += steps
        sequences[sampled] += steps
        attention = float((latency.attention_page_ns(number, page) * visits).sum()) + level_ns * steps
        whole = float((durations_ns * visits).sum())
        found[DECODE] += attention
        counted = latency.tokens_ns(run_tokens) + latency.sequences_ns(sampled)
        found[rest] += whole - attention - steps * counted
    booked = latency.booked_ns
    found[MIXED] += sum(booked[:OVERHEAD])
    found[rest] += booked[OVERHEAD]
    for ops, counts in ((latency.plan.per_token, tokens), (latency.plan.per_sequence, sequences)):
        for group, ns in _counted(ops, counts).items():
            found[group] += ns
    return {group: ns for group, ns in found.items() if ns > 0}


def _counted(ops: Iterable[LinearOp], visits: Mapping[int, int]) -> dict[str, float]:
    """Return ns by group of kernels by count; a count of 0 takes no time."""
    counts = np.array([count for count in visits if count], np.float64)
    times = np.array([visits[count] for count in visits if count], np.float64)
    found: defaultdict[str, float] = defaultdict(float)
    if counts.size:
        for op in ops:
            found[group_of(op.name)] += 1000 * float((op.cost(counts).us * times).sum()) * op.times
    return dict(found)
