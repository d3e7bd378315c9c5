"""A load test as a trace: the requests that succeeded, as the client sent them.

A request that failed has no known answer, so it is left out, and counted. Turns of a conversation that waited
for one another replay closed loop: the pause is from the end of the answer to the next turn. Prompts that
were equal, or that carry on a conversation, share blocks; more is not known of their content.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.units import NS_PER_MS, seconds_to_ns
from simserve.validate.importers.load_test import Int64, LoadTest, Requests
from simserve.workload.arrivals import Arrivals
from simserve.workload.draft import Draft, finish
from simserve.workload.readers.base import ReaderOptions
from simserve.workload.sessions import nominal_arrivals
from simserve.workload.source import TraceFile

BLOCK_TOKENS = 16


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
    draft.assumptions += [note for note in test.notes if "latency" not in note]
    draft.change(test.failed, "requests failed: left out, their answers are not known")
    draft.change(test.left_out, "requests of a warm-up, cancelled or incomplete: left out")
    if (turns := _turns(found)) is not None:
        draft.session, draft.think_ns = turns
        draft.assumptions[0] = (
            "closed loop: a later turn starts after the last answer and a pause, as measured"
        )
    _blocks(draft, found)
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


def _blocks(draft: Draft, found: Requests) -> None:
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
