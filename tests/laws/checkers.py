"""The laws, each a function that raises `LawBroken`; the planted faults in these tests prove that it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from simserve.core import Result, Status, Trace
from simserve.core.result import ABSENT


class LawBroken(AssertionError):
    """A law of the simulation does not hold."""


def _demand(holds: Any, law: str) -> None:
    """Raise `LawBroken` with the rows where `holds` (bool or bool[n]) is false."""
    if not np.all(holds):
        rows = np.flatnonzero(~np.asarray(holds)).tolist()[:5] if np.ndim(holds) else ""
        raise LawBroken(f"{law} {rows}")


def requests_are_conserved(result: Result, trace: Trace) -> None:
    """Every row of the trace is completed, refused or unfinished, and arrived once."""
    counts = {status: int((result.status == status).sum()) for status in Status}
    _demand(sum(counts.values()) == len(trace) == len(result), f"requests in != {counts}")
    _demand(np.sort(result.arrival_order) == np.arange(len(trace)), "arrival ranks are not 0..n-1")
    _demand((result.prompt_tokens == trace.prompt_tokens), "prompts differ from the trace")
    refused = result.status == Status.REFUSED
    _demand((result.reason >= 0) | ~refused, "refused without a reason")
    _demand((result.output_tokens == 0) | ~refused, "a refused request has output")
    for name in ("first_scheduled_ns", "first_token_ns", "last_token_ns"):
        _demand((getattr(result, name) == ABSENT) | ~refused, f"a refused request has {name}")


def answers_have_their_length(result: Result, trace: Trace, max_model_len: int) -> None:
    """A completed answer is as long as the trace says, unless a limit cuts it, and then a reason says so."""
    asked = trace.output_tokens
    allowed = max_model_len - trace.prompt_tokens
    if trace.max_tokens is not None:
        allowed = np.minimum(allowed, trace.max_tokens)
    done = result.status == Status.COMPLETED
    _demand((result.output_tokens == np.minimum(asked, allowed)) | ~done, "wrong length of answer")
    _demand(((result.reason >= 0) == (asked > allowed)) | ~done, "cut without a reason, or the reverse")
    _demand((trace.prompt_tokens < max_model_len) == done, "refused although it fits, or the reverse")


def time_is_causal(result: Result) -> None:
    """Arrival <= first scheduled <= first token <= last token; nothing ends after the end."""
    done = result.status == Status.COMPLETED
    some = done & (result.output_tokens > 0)
    _demand((result.arrival_ns <= result.first_scheduled_ns) | ~done, "scheduled before it arrived")
    _demand((result.first_scheduled_ns < result.last_token_ns) | ~done, "ended before it was scheduled")
    _demand((result.first_scheduled_ns < result.first_token_ns) | ~some, "a token before it was scheduled")
    _demand((result.first_token_ns <= result.last_token_ns) | ~some, "last token before the first")
    _demand((result.first_token_ns == ABSENT) | some, "a first token of an empty answer")
    single = some & (result.output_tokens == 1)
    _demand((result.first_token_ns == result.last_token_ns) | ~single, "one token at two times")
    _demand((result.first_token_ns < result.last_token_ns) | ~some | single, "two tokens at one time")
    _demand(result.requeued_ns <= np.where(done, result.last_token_ns - result.arrival_ns, 0), "requeued")
    _demand(result.end_ns == max(result.last_token_ns.max(), result.end_ns), "a token after the end")
    for replica in result.replicas:
        line = replica.timeline
        _demand(line.start_ns < line.end_ns, "an interval without length")
        _demand(line.start_ns[1:] >= line.end_ns[:-1], "the clock went back")
        busy_ns = (line.end_ns - line.start_ns)[line.steps > 0].sum()
        _demand(replica.busy_ns == busy_ns, "busy time of the timeline")
        _demand(line.start_ns <= result.end_ns, "work after the end")


def gaps_are_those_of_the_columns(result: Result) -> None:
    """n tokens have n - 1 gaps, and a request's gaps add up to last minus first token; to the ns."""
    some = (result.status == Status.COMPLETED) & (result.output_tokens > 0)
    low, high = result.steady_window
    steady = some & (result.arrival_order >= low) & (result.arrival_order < high)
    for name, gaps, rows in (("all", result.gaps, some), ("steady", result.steady_gaps, steady)):
        count = int((result.output_tokens[rows] - 1).sum())
        sum_ns = int((result.last_token_ns - result.first_token_ns)[rows].sum())
        found = (int(gaps.count.sum()), gaps.sum_ns)
        _demand(found == (count, sum_ns), f"{name} gaps {found}, columns say {(count, sum_ns)}")


def work_is_conserved(result: Result) -> None:
    """Tokens computed are those of prompts and answers, what was recomputed counted apart."""
    done = result.status == Status.COMPLETED
    prompts = int((result.prompt_tokens - result.cached_tokens)[done].sum())
    shown = int(result.output_tokens[done].sum())
    first = int((result.output_tokens[done] > 0).sum())
    preempted = int(result.preemptions.sum())
    totals = {
        name: sum(getattr(replica, name) for replica in result.replicas)
        for name in ("prefill_tokens", "decode_tokens", "recomputed_tokens", "preemptions", "linear_tokens")
    }
    _demand(totals["preemptions"] == preempted, "preemptions of replicas and requests differ")
    _demand(totals["linear_tokens"] == totals["prefill_tokens"] + totals["decode_tokens"], "linear tokens")
    by_prompts = shown - first - totals["decode_tokens"]
    _demand(0 <= by_prompts <= preempted, f"{by_prompts} tokens came from {preempted} recomputed prompts")
    new = totals["prefill_tokens"] - totals["recomputed_tokens"]
    if not preempted:
        _demand(new == prompts and not totals["recomputed_tokens"], f"{new} prompt tokens, not {prompts}")
    else:
        _demand(new <= prompts + shown, f"{new} new prompt tokens of {prompts} and {shown} shown")
    for replica in result.replicas:
        line = replica.timeline
        _demand(line.kv_used_blocks <= replica.kv_blocks, "more KV than there is")


def waiting_has_reasons(result: Result) -> None:
    """The times by reason add up to the time in which a request was between arrival and first scheduling.

    Longer where requests wait again after preemptions. Of pipelines it is not known to the nanosecond.
    """
    for index, replica in enumerate(result.replicas):
        rows = np.flatnonzero((result.replica == index) & (result.first_scheduled_ns >= 0))
        rows = rows[np.argsort(result.arrival_ns[rows])]
        union = until = 0
        pairs = zip(result.arrival_ns[rows].tolist(), result.first_scheduled_ns[rows].tolist(), strict=True)
        for start, end in pairs:
            union += max(0, end - max(start, until))
            until = max(until, end)
        waited = sum(replica.waited_ns)
        again = bool(result.preemptions[rows].any())
        _demand(waited >= union if again else waited == union, f"{waited} ns waited, not {union}")


def pools_are_empty(policies: Sequence[Any]) -> None:
    """At the end nobody runs, waits or holds a block."""
    for policy in policies:
        left = (policy.running, policy.waiting, policy.kv_used_blocks)
        _demand(left == (0, 0, 0), f"(running, waiting, KV blocks) at the end: {left}")


def oldest_is_admitted_first(result: Result) -> None:
    """Under first come first served, nobody is scheduled for the first time before an earlier arrival."""
    for replica in range(len(result.replicas)):
        rows = np.flatnonzero((result.replica == replica) & (result.status == Status.COMPLETED))
        order = rows[np.argsort(result.arrival_order[rows])]
        _demand(np.diff(result.first_scheduled_ns[order]) >= 0, "overtaken in the queue")


def nobody_queues(result: Result) -> None:
    """Whoever finds the system idle is scheduled on arrival."""
    done = result.status == Status.COMPLETED
    _demand((result.first_scheduled_ns == result.arrival_ns) | ~done, "queued in an idle system")


_OF_THE_SIMULATION = {"wakeups", "timeline"}
"""What a replica's totals say of the simulator and not of the simulated: may differ with fast-forward."""


def results_agree(one: Result, other: Result, *, whole: bool = False) -> None:
    """Every column, histogram, total and ns of provenance is equal.

    With `whole`, timelines and wake-ups too, and the provenance to its last bit (floats that fast-forward may
    add up in another order).
    """
    if whole:
        _demand(one.provenance_ns == other.provenance_ns, "provenance_ns differs")
    for name in (field.name for field in fields(Result)):
        if name not in ("replicas", "gaps", "steady_gaps", "split"):
            _same(getattr(one, name), getattr(other, name), name)
    if one.split is not None and other.split is not None:
        for field in fields(one.split.columns):
            name = field.name
            _same(getattr(one.split.columns, name), getattr(other.split.columns, name), f"split.{name}")
        _same(one.split.links, other.split.links, "links")
    _demand((one.split is None) == (other.split is None), "only one is split")
    for name in ("gaps", "steady_gaps"):
        for part in ("gap_ns", "count", "sum_ns"):
            _same(getattr(getattr(one, name), part), getattr(getattr(other, name), part), f"{name}.{part}")
    for first, second in zip(one.replicas, other.replicas, strict=True):
        for field in fields(first):
            if field.name == "timeline":
                continue
            if whole or field.name not in _OF_THE_SIMULATION:
                _same(getattr(first, field.name), getattr(second, field.name), f"{first.name}.{field.name}")
        if whole:
            for field in fields(first.timeline):
                _same(getattr(first.timeline, field.name), getattr(second.timeline, field.name), field.name)


def _same(one: Any, other: Any, name: str) -> None:
    if isinstance(one, np.ndarray):
        equal = one.dtype == other.dtype and one.tobytes() == other.tobytes()
    elif name == "provenance_ns":
        equal = one.keys() == other.keys()
        equal = equal and np.allclose(list(one.values()), list(other.values()), rtol=1e-12, atol=0)
    else:
        equal = one == other
    _demand(equal, f"{name} differs: {one} {other}")


def all_laws(result: Result, trace: Trace, max_model_len: int) -> None:
    """The laws that hold for every run."""
    requests_are_conserved(result, trace)
    answers_have_their_length(result, trace, max_model_len)
    time_is_causal(result)
    gaps_are_those_of_the_columns(result)
    work_is_conserved(result)
