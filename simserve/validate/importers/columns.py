"""From the rows that an importer collected to the columns of a load test, in order of sending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simserve.validate.importers.load_test import Names, Requests

NAN = float("nan")


@dataclass
class Row:
    """One request that succeeded. Times in ns; NaN: not known."""

    start_ns: int
    prompt_tokens: int
    output_tokens: int
    ttft_ns: float
    e2e_ns: float
    gaps_ns: Sequence[float] = ()
    session: str | None = None
    content: str | None = None
    text: str | None = None


def columns(rows: list[Row], gaps_known: bool, starts_known: bool = True) -> Requests:
    """Return the requests; stamps are taken apart as integers, so that no digit of theirs is lost."""
    rows = sorted(rows, key=lambda row: row.start_ns)
    first = rows[0].start_ns if rows else 0
    gaps = [gap for row in rows for gap in row.gaps_ns]
    return Requests(
        start_ns=np.array([row.start_ns - first for row in rows], np.int64) if starts_known else None,
        prompt_tokens=np.array([row.prompt_tokens for row in rows], np.int64),
        output_tokens=np.array([row.output_tokens for row in rows], np.int64),
        ttft_ms=np.array([row.ttft_ns for row in rows], np.float64) / 1e6,
        e2e_ms=np.array([row.e2e_ns for row in rows], np.float64) / 1e6,
        gaps_ms=np.array(gaps, np.float64) / 1e6 if gaps_known else None,
        session=_names([row.session for row in rows]),
        content=_names([row.content for row in rows]),
        text=_names([row.text for row in rows]),
    )


def _names(values: list[str | None]) -> Names | None:
    return np.array(values, object) if values and all(value is not None for value in values) else None
