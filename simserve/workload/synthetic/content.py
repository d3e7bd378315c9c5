"""What synthetic prompts contain, as block ids: group prefixes, session histories, revisited prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simserve.core import Trace
from simserve.errors import ScenarioError
from simserve.units import NS_PER_S
from simserve.workload.blocks import Int64, dense, spans, within
from simserve.workload.synthetic.spec import Revisits, SyntheticSpec

Float64 = NDArray[np.float64]
_LOOK_AROUND = 500
"""Requests around the wanted age among which one with a long enough prompt is looked for."""


def draw_blocks(
    spec: SyntheticSpec,
    trace: Trace,
    session: Int64,
    group: Int64,
    prefix_tokens: Int64,
    streams: Sequence[tuple[int, np.random.Generator]],
) -> Trace:
    """Return the trace with block ids, or as it is if the spec shares no content.

    Columns are int64[n] in the trace's order. A full block is shared with the row's group as far as
    `prefix_tokens` reaches, else with the row's session; a partial last block is nobody else's. Revisits are
    drawn from `streams`: from which row on, from which stream.
    """
    if not spec.has_content:
        return trace
    size = spec.block_tokens
    counts = -(-trace.prompt_tokens // size)
    row, place = np.repeat(np.arange(len(trace)), counts), within(counts)
    keeps = spec.sessions is not None and spec.sessions.history == "keep"
    owner = session if keeps else np.arange(len(trace))
    groups = np.zeros(int(group.max()) + 1, dtype=np.int64)
    np.maximum.at(groups, group, prefix_tokens // size)
    longest = np.zeros(int(owner.max()) + 1, dtype=np.int64)
    np.maximum.at(longest, owner, counts)

    ids = groups.sum() + spans(longest)[owner[row]] + place
    full = trace.prompt_tokens[row] >= size * (place + 1)
    ids[~full] = groups.sum() + longest.sum() + row[~full]
    common = place < (prefix_tokens // size)[row]
    ids[common] = spans(groups)[group[row[common]]] + place[common]
    offsets = spans(counts)
    notes: tuple[str, ...] = ()
    if spec.revisits is not None:
        notes = _revisit(spec.revisits, trace, ids, offsets, size, streams)
    origin = replace(trace.origin, changes=(*trace.origin.changes, *notes))
    return replace(trace, block_ids=dense(ids), block_offsets=offsets, block_tokens=size, origin=origin)


def _revisit(
    revisits: Revisits,
    trace: Trace,
    ids: Int64,
    offsets: Int64,
    size: int,
    streams: Sequence[tuple[int, np.random.Generator]],
) -> tuple[str, ...]:
    """Let a share of the rows begin with the blocks of an earlier row (changes `ids`); return a note.

    A row is continued at most once, as a conversation is: so the drawn age is the time since the content
    was last used, which is what decides whether a cache still holds it.
    """
    n = len(trace)
    ends = [*(start for start, _ in streams[1:]), n]
    parts = [_drawn(revisits, start, end, rng) for (start, rng), end in zip(streams, ends, strict=True)]
    chosen, fraction, age_ns = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    full = trace.prompt_tokens // size
    wanted = np.rint(fraction * trace.prompt_tokens[chosen] / size).astype(np.int64)
    wanted = np.minimum(wanted, full[chosen])
    around = np.searchsorted(trace.arrival_ns, trace.arrival_ns[chosen] - age_ns)
    free = np.ones(n, dtype=bool)
    missed = 0
    for row, blocks, near in zip(chosen.tolist(), wanted.tolist(), around.tolist(), strict=True):
        earlier = _nearest_long(full, free, blocks, min(near, row - 1), row)
        if earlier < 0:
            missed += 1
            continue
        free[earlier] = False
        ids[offsets[row] : offsets[row] + blocks] = ids[offsets[earlier] : offsets[earlier] + blocks]
    return (f"{len(chosen) - missed:,} prompts begin like an earlier one; {missed:,} found none long enough",)


def _drawn(
    revisits: Revisits, start: int, end: int, rng: np.random.Generator
) -> tuple[Int64, Float64, Int64]:
    """Return which rows of [start, end) revisit, what share of their prompts, and how old that is in ns."""
    chosen = np.flatnonzero(rng.random(end - start) < revisits.share)
    fraction = revisits.fraction.draw(rng, len(chosen), floor=0)
    if (fraction > 1).any():
        raise ScenarioError(f"revisits.fraction drew {fraction.max():g}: a share is at most 1 (set max)")
    age_ns = (revisits.age_s.draw(rng, len(chosen), floor=0) * NS_PER_S).astype(np.int64)
    return chosen + start, fraction, age_ns


def _nearest_long(full: Int64, free: NDArray[np.bool_], blocks: int, near: int, row: int) -> int:
    """Return the row that is free and has `blocks` full blocks: the last up to `near`, else the next one.

    -1 if there is none before `row`.
    """
    low, high = max(0, near - _LOOK_AROUND), min(row, near + _LOOK_AROUND)
    fit = np.flatnonzero((full[low:high] >= blocks) & free[low:high]) + low
    if not len(fit):
        return -1
    older = int(np.searchsorted(fit, near, side="right"))
    return int(fit[older - 1] if older else fit[0])
