"""Rows of a CSV file, written the same way on every machine."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from simserve.core import Trace
from simserve.workload.blocks import fits


def csv_bytes(columns: dict[str, Iterable[Any]]) -> bytes:
    """Return a CSV with a header, LF line ends, quotes only where needed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue().encode()


def id_texts(trace: Trace) -> list[str]:
    """Return each row's block ids as `11|22|33`."""
    return ["|".join(map(str, ids)) for ids in id_lists(trace)]


def id_lists(trace: Trace) -> list[list[int]]:
    """Return each row's block ids."""
    if trace.block_ids is None or trace.block_offsets is None:
        return [[] for _ in range(len(trace))]
    ids: list[int] = trace.block_ids.tolist()
    edges: Sequence[int] = trace.block_offsets.tolist()
    return [ids[a:b] for a, b in pairwise(edges)]


def counts_agree(trace: Trace) -> bool:
    """Return whether every row has one id per started block, or every row one per full block."""
    if trace.block_offsets is None:
        return True
    return fits(trace.prompt_tokens, np.diff(trace.block_offsets), trace.block_tokens) is not None


def has_partial_blocks(trace: Trace) -> bool:
    """Return whether partial last blocks have ids (also if there happens to be no partial block)."""
    if trace.block_offsets is None:
        return False
    return fits(trace.prompt_tokens, np.diff(trace.block_offsets), trace.block_tokens) == "ceil"
