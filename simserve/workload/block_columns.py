"""A column of block ids on its way from a file into a draft: checked, told apart, chained to prefixes."""

from __future__ import annotations

from typing import Any, NoReturn

from simserve.workload.blocks import Blocks, chain, cut, fits, infer_size, misfit, recode, split_fills
from simserve.workload.draft import Draft, Rows
from simserve.workload.select import Int64


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
