"""Draw a trace from a `SyntheticSpec`.

Order: arrivals, turns, lengths and content, each from a stream of its own. A workload that was made longer
draws what it had before from the same stream as before, and the rest from another.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from simserve.core import Trace, TraceOrigin
from simserve.errors import ScenarioError
from simserve.units import NS_PER_US
from simserve.workload.blocks import Int64, take_rows, within
from simserve.workload.synthetic.content import draw_blocks
from simserve.workload.synthetic.distributions import Distribution
from simserve.workload.synthetic.spec import SyntheticSpec
from simserve.workload.transform import nominal_arrivals, running_sum

Float64 = NDArray[np.float64]
_US_PER_S = 1_000_000
_MOST_REQUESTS = 100_000_000


class Stream(IntEnum):
    """Random streams: a part of the workload never sees another part's draws."""

    ARRIVALS = 0
    PROMPTS = 1
    OUTPUTS = 2
    TURNS = 3
    THINKING = 4
    GROUPS = 5
    REVISITS = 6


@dataclass(frozen=True)
class Rows:
    """The requests before their content is known, in session order (turns of a session are neighbours)."""

    session: Int64
    first: NDArray[np.bool_]
    start_ns: Int64
    think_ns: Int64
    """0 for first turns."""
    new_tokens: Int64
    output_tokens: Int64
    prefix_tokens: Int64
    """Tokens shared with the row's group."""
    group: Int64
    prompt_tokens: Int64

    def pick(self, rows: NDArray[np.bool_] | Int64) -> Rows:
        """Return the rows of a mask or an index; a session may only lose its last turns."""
        return Rows(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def synthesize(spec: SyntheticSpec, seed: int) -> Trace:
    """Return the workload drawn from `spec`; the same spec and seed give the same trace.

    Stamps are whole microseconds. Raises `ScenarioError` if a truncation cannot be met.
    """
    rows = _rows(spec, seed)
    closed = spec.sessions is not None and spec.sessions.loop == "closed"
    arrival_ns = nominal_arrivals(rows.start_ns, rows.session, rows.think_ns)
    trace = Trace(
        arrival_ns=arrival_ns - arrival_ns.min(),
        prompt_tokens=rows.prompt_tokens,
        output_tokens=rows.output_tokens,
        origin=TraceOrigin("synthetic workload", "synthetic", assumptions=_assumptions(spec, seed)),
        session=rows.session if closed else None,
        think_ns=rows.think_ns if closed else None,
    )
    order = np.argsort(trace.arrival_ns, kind="stable")
    trace, rows = take_rows(trace, order), rows.pick(order)
    streams = [(0, _rng(seed, Stream.REVISITS))]
    if spec.grown_from is not None:
        kept = min(_kept_requests(spec, rows), len(trace))
        streams.append((kept, _rng(seed, Stream.REVISITS, grown=True)))
    return draw_blocks(spec, trace, rows.session, rows.group, rows.prefix_tokens, streams)


def _rows(spec: SyntheticSpec, seed: int) -> Rows:
    start_s = _start_times(spec, seed)
    kept_sessions = _kept_sessions(spec, start_s)
    turns = _turns(spec, seed, len(start_s), kept_sessions)
    kept = int(turns[:kept_sessions].sum())
    session = np.repeat(np.arange(len(turns)), turns)
    first = within(turns) == 0
    n = len(session)
    group, prefix = _groups(spec, seed, len(turns))
    new_tokens = _whole(spec.prompt_tokens, seed, Stream.PROMPTS, n, kept)
    output_tokens = _whole(spec.output_tokens, seed, Stream.OUTPUTS, n, kept)
    on_top = spec.shared_prefixes is not None and spec.shared_prefixes.counted == "added"
    added = prefix[session] if on_top else np.zeros(n, dtype=np.int64)
    keeps = spec.sessions is not None and spec.sessions.history == "keep"
    prompt = new_tokens + added
    if keeps:
        prompt = running_sum(new_tokens + output_tokens, session) - output_tokens + added
    rows = Rows(
        session,
        first,
        np.rint(start_s * _US_PER_S).astype(np.int64)[session] * NS_PER_US,
        np.where(first, 0, _thinking_ns(spec, seed, n, kept)),
        new_tokens,
        output_tokens,
        np.minimum(prefix[session], prompt),
        group[session],
        prompt,
    )
    return _limited(spec, rows)


def _limited(spec: SyntheticSpec, rows: Rows) -> Rows:
    """Cut sessions at their context limit, then the rows at the number asked for (in arrival order)."""
    sessions = spec.sessions
    if sessions is not None and sessions.max_context_tokens is not None:
        over = rows.prompt_tokens + rows.output_tokens > sessions.max_context_tokens
        if (over & rows.first).any():
            raise ScenarioError(
                f"{int((over & rows.first).sum()):,} sessions exceed max_context_tokens "
                f"{sessions.max_context_tokens:,} in their first turn: give the lengths a max"
            )
        rows = rows.pick(running_sum(over.astype(np.int64), rows.session) == 0)
    if spec.requests is None or len(rows.session) <= spec.requests:
        return rows
    nominal = nominal_arrivals(rows.start_ns, rows.session, rows.think_ns)
    rank = np.empty(len(nominal), dtype=np.int64)
    rank[np.argsort(nominal, kind="stable")] = np.arange(len(nominal))
    return rows.pick(rank < spec.requests)


def _start_times(spec: SyntheticSpec, seed: int) -> Float64:
    """Arrival times of the independent requests or sessions, in seconds, the first at 0."""
    if spec.requests is not None:
        return spec.arrivals.times_s(_rng(seed, Stream.ARRIVALS), spec.requests)
    assert spec.duration_s is not None
    n = 16
    while n <= _MOST_REQUESTS:
        times_s = spec.arrivals.times_s(_rng(seed, Stream.ARRIVALS), n)
        if times_s[-1] >= spec.duration_s:
            return times_s[times_s < spec.duration_s]
        n *= 2
    raise ScenarioError(f"duration_s {spec.duration_s:g} makes more than {_MOST_REQUESTS:,} requests")


def _kept_sessions(spec: SyntheticSpec, start_s: Float64) -> int:
    """Return how many independent requests or sessions the workload had before it was made longer."""
    if spec.grown_from is None:
        return 0
    return int(spec.grown_from) if spec.requests is not None else int((start_s < spec.grown_from).sum())


def _kept_requests(spec: SyntheticSpec, rows: Rows) -> int:
    """Return how many requests it had (only workloads without sessions draw by request)."""
    assert spec.grown_from is not None
    if spec.requests is not None:
        return int(spec.grown_from)
    return int((rows.start_ns < spec.grown_from * _US_PER_S * NS_PER_US).sum())


def _turns(spec: SyntheticSpec, seed: int, n: int, kept: int) -> Int64:
    if spec.sessions is None:
        return np.ones(n, dtype=np.int64)
    return _whole(spec.sessions.turns, seed, Stream.TURNS, n, kept)


def _groups(spec: SyntheticSpec, seed: int, n: int) -> tuple[Int64, Int64]:
    """Return the prefix group of each session and its tokens."""
    if spec.shared_prefixes is None:
        return np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    weights = np.array([group.weight for group in spec.shared_prefixes.groups])
    tokens = np.array([group.tokens for group in spec.shared_prefixes.groups], dtype=np.int64)
    group = _rng(seed, Stream.GROUPS).choice(len(weights), n, p=weights / weights.sum())
    return group, tokens[group]


def _drawn(values: Distribution, seed: int, stream: Stream, n: int, kept: int, floor: float) -> Float64:
    """Draw n values, the first `kept` as if they were all."""
    first = values.draw(_rng(seed, stream), kept or n, floor=floor)
    if not kept:
        return first
    return np.concatenate([first, values.draw(_rng(seed, stream, grown=True), n - kept, floor=floor)])


def _whole(lengths: Distribution, seed: int, stream: Stream, n: int, kept: int) -> Int64:
    """Draw whole numbers from 1 (what would round to 0 is drawn again)."""
    return np.rint(_drawn(lengths, seed, stream, n, kept, floor=0.5)).astype(np.int64).clip(1)


def _thinking_ns(spec: SyntheticSpec, seed: int, n: int, kept: int) -> Int64:
    if spec.sessions is None:
        return np.zeros(n, dtype=np.int64)
    think_s = _drawn(spec.sessions.think_s, seed, Stream.THINKING, n, kept, floor=0)
    return np.rint(think_s * _US_PER_S).astype(np.int64) * NS_PER_US


def _assumptions(spec: SyntheticSpec, seed: int) -> tuple[str, ...]:
    plain = spec.model_dump_json(exclude_none=True, exclude_defaults=False)
    loop = "closed loop" if spec.sessions is not None and spec.sessions.loop == "closed" else "open loop"
    return (f"generated, seed {seed}, {loop}; stamps in whole microseconds", f"specification {plain}")


def _rng(seed: int, stream: Stream, grown: bool = False) -> np.random.Generator:
    """Return a part's random stream, or that of what it gained when it was made longer."""
    key = (int(stream), 1) if grown else (int(stream),)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
