"""A load test as a run that can be compared with simulated ones: the same statistics by the same definitions.

What a client cannot see (queueing, KV, preemptions, the engine's settings) is absent.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from simserve.core import TokenGaps, Trace
from simserve.errors import TraceError
from simserve.metrics.comparison import requests_sha256
from simserve.metrics.definitions import DEFINITIONS
from simserve.metrics.distribution import Distribution, of_gaps_ms, of_values
from simserve.metrics.store import StoredRun
from simserve.units import NS_PER_MS, NS_PER_S, seconds_to_ns
from simserve.validation.loadtests.base import Float64, Int64, LoadTest, Requests
from simserve.workload.draft import Draft, finish
from simserve.workload.formats.base import ReaderOptions
from simserve.workload.source import TraceFile
from simserve.workload.synthetic.arrivals import Arrivals
from simserve.workload.transform import nominal_arrivals

# What prompts of a load test have in common, as blocks: by their text, or by what the tool says of them.
#
# Of a text, beginnings are compared character by character; how many characters a token takes is the mean of
# the file. Without texts, prompts with equal names are equal, and a turn carries on the turns before it if
# its
# prompt is long enough to hold them.

BLOCK_TOKENS = 16


def add_blocks(draft: Draft, found: Requests) -> None:
    """Put blocks into the draft if the load test shows any prefix that prompts have in common."""
    if found.text is None or not any(found.text):
        _blocks_of_names(draft, found)
    else:
        _blocks_of_texts(draft, found.prompt_tokens, found.text.tolist())


def _blocks_of_texts(draft: Draft, prompt_tokens: Int64, texts: list[str]) -> None:
    """Cut texts into pieces of one length; pieces after equal beginnings are equal blocks."""
    characters = BLOCK_TOKENS * sum(map(len, texts)) / max(int(prompt_tokens.sum()), 1)
    counts = prompt_tokens // BLOCK_TOKENS
    known: dict[tuple[int, str], int] = {}
    ids: list[int] = []
    for row, (text, count) in enumerate(zip(texts, counts.tolist(), strict=True)):
        before = -1
        for i in range(count):
            piece = text[round(i * characters) : round((i + 1) * characters)]
            before = known.setdefault((before, piece or f"end of row {row}"), len(known))
            ids.append(before)
    draft.block_ids = np.array(ids, np.int64)
    draft.block_offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    draft.block_tokens = BLOCK_TOKENS
    draft.assume(f"prefixes: by the prompts' text, {characters:.0f} characters for {BLOCK_TOKENS} tokens")


def _blocks_of_names(draft: Draft, found: Requests) -> None:
    """Give equal prompts, and the turns of a conversation, equal blocks; nothing if there are none."""
    names = [f"row {i}" for i in range(len(found))] if found.content is None else found.content.tolist()
    first_prompt = found.prompt_tokens.copy()
    own = np.arange(len(found)).astype(str).astype(object)
    grown = False
    if found.session is not None:
        names, first_prompt, own, grown = _carried_on(found, names)
    content = np.unique(np.array(names, dtype=str), return_inverse=True)[1]
    if not grown and len(np.unique(content)) == len(found):
        draft.assume("no prefix information")
        return
    counts = found.prompt_tokens // BLOCK_TOKENS
    offsets = np.concatenate([[0], np.cumsum(counts)])
    row = np.repeat(np.arange(len(found)), counts)
    place = np.arange(offsets[-1]) - offsets[row]
    longest = int(counts.max(initial=1))
    shared = place < (first_prompt // BLOCK_TOKENS)[row]
    mine = np.unique(own.astype(str), return_inverse=True)[1]
    ids = np.where(shared, content[row] * longest + place, -1 - (mine[row] * longest + place))
    draft.block_ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    draft.block_offsets, draft.block_tokens = offsets.astype(np.int64), BLOCK_TOKENS
    draft.assume(
        f"prefixes: equal prompts and carried-on conversations share blocks of {BLOCK_TOKENS} tokens"
    )


def _carried_on(found: Requests, names: list[str]) -> tuple[list[str], Int64, np.ndarray, bool]:
    """Let the turns of a conversation begin with its first prompt, where each carries the ones before it.

    Returns the name and the length of what each row begins with, whose the rest is, and whether any does.
    """
    assert found.session is not None
    names, first_prompt = list(names), found.prompt_tokens.copy()
    own = np.arange(len(found)).astype(str).astype(object)
    turns: dict[str, list[int]] = {}
    for row, session in enumerate(found.session.tolist()):
        turns.setdefault(session, []).append(row)
    grown = False
    for session, rows in turns.items():
        carried = found.prompt_tokens[rows[:-1]] + found.output_tokens[rows[:-1]]
        if len(rows) < 2 or (found.prompt_tokens[rows[1:]] < carried).any():
            continue
        grown = True
        for row in rows:
            names[row], first_prompt[row] = names[rows[0]], found.prompt_tokens[rows[0]]
            own[row] = f"session {session}"
    return names, first_prompt, own, grown


# A load test as a trace: the requests that succeeded, as the client sent them.
#
# A request that failed has no known answer, so it is left out, and counted. Turns of a conversation that
# waited
# for one another replay closed loop: the pause is from the end of the answer to the next turn. Prompts that
# were equal, or that carry on a conversation, share blocks; more is not known of their content.


class MeasuredOptions(ReaderOptions):
    """What a file without send times does not say."""

    arrivals: Arrivals | None = Field(
        default=None, description="Generated arrivals for a tool that stores none, e.g. {kind: poisson, ...}."
    )
    seed: int = Field(default=0, ge=0, description="Seed of the generated arrivals.")


def trace_of(test: LoadTest, file: TraceFile, options: MeasuredOptions) -> Trace:
    """Return the trace; raises `TraceError` if the file does not hold what a trace needs."""
    found = test.requests
    if found is None:
        raise TraceError(f"{test.source}: statistics only ({test.format}): there are no requests to replay")
    if not found.prompt_tokens.any():
        raise TraceError(f"{test.source}: {test.format} does not tell the prompts' lengths")
    arrival_ns, how = _arrivals(test, found, options)
    draft = Draft(file, test.format, arrival_ns, found.prompt_tokens, found.output_tokens)
    draft.assume(how)
    draft.assumptions += test.notes
    draft.change(test.failed, "requests failed: left out, their answers are not known")
    draft.change(test.left_out, "requests of a warm-up, cancelled or incomplete: left out")
    if (turns := _turns(found)) is not None:
        draft.session, draft.think_ns = turns
        draft.assumptions[0] = (
            "closed loop: a later turn starts after the last answer and a pause, as measured"
        )
    add_blocks(draft, found)
    trace = finish(draft)
    return replace(trace, origin=replace(trace.origin, name=test.source))


def _arrivals(test: LoadTest, found: Requests, options: MeasuredOptions) -> tuple[Int64, str]:
    if found.start_ns is not None:
        if options.arrivals is not None:
            raise TraceError(
                f"{test.source}: the file has send times; the option arrivals would replace them"
            )
        return found.start_ns, "open loop: send times as measured; time 0 is the first"
    if options.arrivals is None:
        raise TraceError(
            f"{test.source}: {test.format} stores no send times: set the option arrivals, e.g. "
            "{kind: poisson, rate_per_s: 2}"
        )
    times_s = options.arrivals.times_s(np.random.default_rng(options.seed), len(found))
    arrival_ns = np.array([seconds_to_ns(t) for t in times_s.tolist()], np.int64)
    return arrival_ns, f"arrivals generated (seed {options.seed}): {options.arrivals!r}"


def replay_order(found: Requests) -> Int64:
    """Return the rows in the order in which a trace of them holds them."""
    turns = _turns(found)
    if turns is None or found.start_ns is None:
        return np.arange(len(found))
    return np.argsort(nominal_arrivals(found.start_ns, *turns), kind="stable")


def _turns(found: Requests) -> tuple[Int64, Int64] | None:
    """Return session and pause of each row; None if turns did not wait for the answers before them."""
    if found.session is None or found.start_ns is None or np.isnan(found.e2e_ms).any():
        return None
    session = np.unique(found.session.astype(str), return_inverse=True)[1].astype(np.int64)
    end_ns = found.start_ns + np.rint(found.e2e_ms * NS_PER_MS).astype(np.int64)
    think_ns = np.zeros(len(found), np.int64)
    last: dict[int, int] = {}
    for row, of in enumerate(session.tolist()):  # rows are in order of sending
        if of in last:
            think_ns[row] = found.start_ns[row] - end_ns[last[of]]
        last[of] = row
    return None if len(last) == len(found) or (think_ns < 0).any() else (session, think_ns)


LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queueing_ms", "requeued_ms", "normalised_ms")
RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
_UNSEEN = ("kv_use_mean", "hit_rate", "preemptions", "slo")


def run_of(test: LoadTest) -> StoredRun:
    """Return the load test with the summary, the manifest and the tables of a run."""
    found = test.requests
    facts = {
        "source": test.source,
        "format": test.format,
        "sent": test.sent,
        "completed": test.completed,
        "failed": test.failed,
        "left_out": test.left_out,
        "per_request": found is not None,
        "notes": [*test.latency_notes, *test.notes],
    }
    manifest: dict[str, Any] = {"measured": facts, "scenario_name": test.source}
    held = {"requests": pa.table(_columns(None)), "gaps": _gap_table(None)}
    if found is not None:
        found = found.rows(replay_order(found))
        manifest["trace"] = {"requests_sha256": requests_sha256(found.prompt_tokens, found.output_tokens)}
        held = {"requests": pa.table(_columns(found)), "gaps": _gap_table(found.gaps_ms)}
    return StoredRun(Path(test.source), _summary(test), manifest, "", held)


def _summary(test: LoadTest) -> dict[str, Any]:
    whole = _stated(test) if test.requests is None else _recomputed(test, test.requests)
    return {
        "schema": 1,
        "counts": {"requests": test.sent, "completed": test.completed},
        "whole": whole | dict.fromkeys(_UNSEEN),
        "stability": {"verdict": "not judged", "reason": "a client does not see the queue"},
        "pools": [],
        "replicas": [],
        "provenance": {},
        "cost_per_million_output_tokens": None,
        "warnings": [],
        "definitions": dict(DEFINITIONS),
    }


def _stated(test: LoadTest) -> dict[str, Any]:
    """Return the tool's own statistics where ours stand; what it does not state is absent."""
    whole: dict[str, Any] = {name: asdict(Distribution()) for name in LATENCIES}
    whole |= {name: test.stated.get(name) for name in RATES}
    for name, value in test.stated.items():
        latency, dot, statistic = name.partition(".")
        if dot:
            whole[latency][statistic] = value
    return {"duration_s": test.duration_s, **whole}


def _recomputed(test: LoadTest, found: Requests) -> dict[str, Any]:
    whole = {name: asdict(Distribution()) for name in LATENCIES}
    columns = _columns(found)
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        whole[name] = asdict(of_values(columns[name]))
    whole["normalised_ms"] = asdict(of_values(found.e2e_ms / np.maximum(found.output_tokens, 1)))
    if found.gaps_ms is not None:
        whole["itl_ms"] = asdict(of_gaps_ms(_gaps(found.gaps_ms)))
    duration_s = _duration_s(test, found)
    amounts = (len(found), found.output_tokens.sum(), (found.output_tokens + found.prompt_tokens).sum())
    rates = {
        name: float(n) / duration_s if duration_s else None for name, n in zip(RATES, amounts, strict=True)
    }
    if not found.prompt_tokens.any():  # the tool does not tell
        rates["total_tokens_per_s"] = None
    return {"duration_s": duration_s, **whole, **rates}


def _duration_s(test: LoadTest, found: Requests) -> float | None:
    """Return the time from the first send to the last token; if not all are known, what the tool states."""
    if found.start_ns is None or not len(found) or np.isnan(found.e2e_ms).any():
        return test.duration_s
    return float(np.max(found.start_ns / NS_PER_S + found.e2e_ms / 1e3))


def _columns(found: Requests | None) -> dict[str, Any]:
    """Return the columns of requests.parquet that a client knows."""
    empty = np.empty(0)
    if found is None:
        found = Requests(None, empty.astype(np.int64), empty.astype(np.int64), empty, empty)
    several = found.output_tokens > 1
    tpot_ms = np.where(
        several, (found.e2e_ms - found.ttft_ms) / np.maximum(found.output_tokens - 1, 1), np.nan
    )
    return {
        "request": np.arange(len(found)),
        "prompt_tokens": found.prompt_tokens,
        "output_tokens": found.output_tokens,
        "ttft_ms": found.ttft_ms,
        "tpot_ms": tpot_ms,
        "e2e_ms": found.e2e_ms,
        "status": pa.array(["completed"] * len(found), pa.string()),
    }


def _gaps(gaps_ms: Float64) -> TokenGaps:
    gap_ns, count = np.unique(np.rint(gaps_ms * NS_PER_MS), return_counts=True)
    return TokenGaps(gap_ns, count.astype(np.int64), int((gap_ns * count).sum()))


def _gap_table(gaps_ms: Float64 | None) -> pa.Table:
    gaps = _gaps(np.empty(0) if gaps_ms is None else gaps_ms)
    window = pa.array(["whole"] * len(gaps.gap_ns), pa.string())
    return pa.table({"window": window, "gap_ns": gaps.gap_ns, "count": gaps.count})
