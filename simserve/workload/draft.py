"""From a format's raw columns to a `Trace`: one origin, one order, and a note of everything that was done.

Every reader ends here, so that sorting, counting and numbering are the same for all formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from simserve.core import Trace, TraceOrigin
from simserve.errors import TraceError
from simserve.units import NS_PER_S
from simserve.workload.blocks import (
    Blocks,
    Int64,
    chain,
    cut,
    fits,
    infer_size,
    misfit,
    recode,
    split_fills,
    take_rows,
)
from simserve.workload.source import TraceFile, shown
from simserve.workload.transform import nominal_arrivals

LONGEST_IDLE_NS = 10**8 * NS_PER_S
"""No trace idles for three years: a longer gap means two epochs, or two units, in one column."""


class Rows(Protocol):
    """Rows of a file that know where they stand."""

    def fail(self, row: int, message: str) -> NoReturn:
        """Raise a `TraceError` about one row."""
        ...

    def line_of(self, row: int) -> int:
        """Return the line of a row."""
        ...


@dataclass(frozen=True)
class Kept:
    """Some of a file's rows, counted anew from 0."""

    every: Rows
    kept: Sequence[int] | Int64

    def fail(self, row: int, message: str) -> NoReturn:
        """Raise a `TraceError` about one of them."""
        self.every.fail(int(self.kept[row]), message)

    def line_of(self, row: int) -> int:
        """Return the line of one of them."""
        return self.every.line_of(int(self.kept[row]))


@dataclass
class Draft:
    """Columns of a trace as read, in file order; `assume` and `change` collect the notes."""

    file: TraceFile
    format: str
    arrival_ns: Int64
    """int64[n] on the file's own clock, not negative, any order."""
    prompt_tokens: Int64
    output_tokens: Int64
    max_tokens: Int64 | None = None
    priority: Int64 | None = None
    session: Int64 | None = None
    """int64[n], session number of each row, any numbering."""
    think_ns: Int64 | None = None
    block_ids: Int64 | None = None
    block_offsets: Int64 | None = None
    block_tokens: int = 0
    request_ids: Sequence[object] | None = None
    """Ids of the requests, if the format has any: duplicates are counted."""
    labels: dict[str, NDArray[np.object_]] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    """Role to the column that was taken for it, where the reader chose."""
    assumptions: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    rows: Rows | None = None
    """Where the rows stand in the file, for errors about one of them."""

    def assume(self, note: str) -> None:
        """Record something that the reader took for granted."""
        self.assumptions.append(note)

    def change(self, count: int, note: str) -> None:
        """Record that `count` rows were changed or are odd; nothing if the count is zero."""
        if count:
            self.changes.append(f"{count:,} {note}")


def check_cached(draft: Draft, name: str, values: Iterable[object]) -> None:
    """Raise `TraceError` about the first count of cached tokens that is none, or above its prompt.

    A missing or empty value is unknown, and passes.
    """
    assert draft.rows is not None, "a reader with cached tokens knows its rows"
    for row, value in enumerate(values):
        text = "" if value is None else str(value).removesuffix(".0")
        if not text:
            continue
        if not (text.isascii() and text.isdigit()):
            draft.rows.fail(
                row, f"{name} is {shown(value)}; allowed: a whole number of tokens from 0, or none"
            )
        if int(text) > draft.prompt_tokens[row]:
            draft.rows.fail(
                row,
                f"{name} is {text}, above the prompt's {draft.prompt_tokens[row]:,} tokens; allowed: a "
                "part of the prompt",
            )


def finish(draft: Draft) -> Trace:
    """Return the trace: sorted, from the first arrival, with its counts noted."""
    n = len(draft.arrival_ns)
    draft.assumptions.insert(0, f"format {draft.format}, {n:,} requests")
    arrival_ns = draft.arrival_ns
    if draft.session is not None and draft.think_ns is not None:
        arrival_ns = nominal_arrivals(arrival_ns, draft.session, draft.think_ns)
        if arrival_ns.min() < 0:
            raise TraceError(f"{draft.file.path}: the pauses of a session add up to more than 292 years")
    _one_clock(draft, arrival_ns)
    _count_oddities(draft, arrival_ns)
    origin = TraceOrigin(
        draft.file.path.name,
        draft.format,
        draft.file.sha256,
        tuple(draft.assumptions),
        tuple(draft.changes),
        draft.columns,
    )
    trace = Trace(
        arrival_ns=arrival_ns - arrival_ns.min(),
        prompt_tokens=draft.prompt_tokens,
        output_tokens=draft.output_tokens,
        origin=origin,
        max_tokens=draft.max_tokens,
        priority=draft.priority,
        session=draft.session,
        think_ns=draft.think_ns,
        block_ids=draft.block_ids,
        block_offsets=draft.block_offsets,
        block_tokens=draft.block_tokens,
        labels=draft.labels,
    )
    return take_rows(trace, np.argsort(trace.arrival_ns, kind="stable"))


def _one_clock(draft: Draft, arrival_ns: Int64) -> None:
    """Raise `TraceError` about the first row that lies beyond a gap of years from the rows before it."""
    order = np.argsort(arrival_ns, kind="stable")
    gaps = np.diff(arrival_ns[order])
    if not len(gaps) or gaps.max() <= LONGEST_IDLE_NS:
        return
    place = int(np.argmax(gaps))
    later = np.zeros(len(arrival_ns), dtype=bool)
    later[order[place + 1 :]] = True
    row = int(np.flatnonzero(later != later[0])[0])
    before, after = (arrival_ns[order[i]] / NS_PER_S for i in (place, place + 1))
    years = (after - before) / (365.25 * 86_400)
    message = (
        f"arrives at {arrival_ns[row] / NS_PER_S:.10g} s, {years:,.0f} years from the rows before it "
        f"(nothing between {before:.10g} s and {after:.10g} s): two clocks or units in one column? "
        "Allowed is one clock, with no gap above 3 years"
    )
    if draft.rows is None:
        raise TraceError(f"{draft.file.path}: request {row + 1}: {message}")
    draft.rows.fail(row, message)


def _count_oddities(draft: Draft, arrival_ns: Int64) -> None:
    if draft.session is None:
        late = int(np.count_nonzero(np.diff(arrival_ns) < 0))
        draft.change(late, "rows came earlier than the row before: sorted, equal stamps in file order")
    draft.change(int(np.count_nonzero(draft.prompt_tokens == 0)), "requests with an empty prompt: kept")
    draft.change(int(np.count_nonzero(draft.output_tokens == 0)), "requests with no output: kept")
    if draft.request_ids is not None:
        repeated = len(draft.request_ids) - len(set(draft.request_ids))
        draft.change(repeated, "rows repeat the id of an earlier request: kept")


# A column of block ids on its way from a file into a draft: checked, told apart, chained to prefixes.


def checked_blocks(
    draft: Draft,
    rows: Rows,
    column: str,
    lists: list[list[Any]],
    tokens: Int64,
    usual: int,
    given: int | None,
    tolerant: bool,
) -> tuple[Blocks, int, bool]:
    """Return the blocks, their size, and whether a partial last block has an id.

    `tokens` are the lengths that the ids describe, `given` the block size if it is known, `usual` the
    format's. Raises `TraceError` naming the first row with too many or too few ids; `tolerant` cuts surplus
    ids, keeps short lists, and counts both.
    """
    blocks = recode(lists)
    size = given or infer_size(tokens, blocks.counts, usual)
    rounding = fits(tokens, blocks.counts, size)
    if rounding is None and not tolerant:
        _fail_misfit(rows, column, blocks, tokens, size)
    if rounding is None:
        most, least = -(-tokens // size), tokens // size
        draft.change(int((blocks.counts > most).sum()), f"rows with more {column} than blocks: cut")
        draft.change(int((blocks.counts < least).sum()), f"rows with fewer {column} than blocks: kept")
        blocks = cut(blocks, most)
    source = "given" if given else "as usual" if size == usual else "inferred from all rows"
    kind = {"ceil": "a partial last block has one", "floor": "full blocks only", None: "counts disagree"}
    draft.assume(f"{column}: one id per {size} tokens ({source}), {kind[rounding]}")
    return blocks, size, rounding != "floor"


def adopt(draft: Draft, rows: Rows, column: str, blocks: Blocks, size: int) -> None:
    """Put the blocks of the draft's prompts into the draft, as ids that stand for whole prefixes."""
    blocks, odd_rows = split_fills(blocks, draft.prompt_tokens, size)
    if len(odd_rows):
        at = f"first in line {rows.line_of(int(odd_rows[0]))}"
        draft.change(
            len(odd_rows), f"rows use an id of {column} for another number of tokens ({at}): told apart"
        )
    blocks, renumbered = chain(blocks)
    if renumbered:
        draft.assume(f"{column}: one id follows different ids, so ids are contents; chained to prefixes")
    draft.block_ids, draft.block_offsets, draft.block_tokens = blocks.ids, blocks.offsets, size


def _fail_misfit(rows: Rows, column: str, blocks: Blocks, tokens: Int64, size: int) -> NoReturn:
    row = misfit(tokens, blocks.counts, size)
    full, started = tokens[row] // size, -(-tokens[row] // size)
    either = f"{started}, or {full} if only full blocks have ids"
    expected = f"{started}" if full == started else either
    rows.fail(
        row,
        f"{column} has {blocks.counts[row]} ids, but a prompt of {tokens[row]} tokens in blocks of {size} "
        f"has {expected} (options: block_tokens, tolerant)",
    )
