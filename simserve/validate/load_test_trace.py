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
from simserve.validate.load_test_blocks import add_blocks
from simserve.workload.arrivals import Arrivals
from simserve.workload.draft import Draft, finish
from simserve.workload.readers.base import ReaderOptions
from simserve.workload.sessions import nominal_arrivals
from simserve.workload.source import TraceFile


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
