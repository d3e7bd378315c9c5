"""vLLM's `bench serve --save-detailed` (one JSON) and SGLang's `bench_serving --output-details` (JSON lines).

Both store lists of equal length: input_lens, output_lens, ttfts (s), itls (s, a list each), errors; vLLM
since January 2026 also start_times. Neither stores E2E or a success flag: E2E = TTFT + gaps, an error text
means failed, and a TTFT of 0 was not measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.validate.importers.outcome import Outcome

_LISTS = ("input_lens", "output_lens", "ttfts", "itls")


def read_bench_lists(path: Path) -> list[Outcome]:
    """Return one outcome per run in the file; raises `TraceError` naming file, line and key."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        runs = [json.loads(text)]
        places = [path.name]
    except json.JSONDecodeError:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        runs = [_parsed(path, number, line) for number, line in lines]
        places = [f"{path.name}:{number}" for number, _ in lines]
    return [_outcome(place, run) for place, run in zip(places, runs, strict=True)]


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path.name}:{number}: not JSON: {error.msg}") from error


def _outcome(place: str, run: Any) -> Outcome:
    missing = [name for name in _LISTS if not isinstance(run, dict) or name not in run]
    if missing:
        raise TraceError(f"{place}: no {missing[0]!r}: a summary without details has no request to compare")
    count = len(run["ttfts"])
    errors = run.get("errors") or [""] * count
    starts = run.get("start_times")
    for name, values in (
        *((name, run[name]) for name in _LISTS),
        ("errors", errors),
        ("start_times", starts),
    ):
        if values is not None and len(values) != count:
            raise TraceError(f"{place}: {name} has {len(values)} entries, ttfts {count}")
    failed = np.array([bool(error) for error in errors], bool)
    ttft_s = np.array(run["ttfts"], np.float64)
    kept = ~failed & (ttft_s > 0)
    gaps_s = np.array([float(np.sum(one)) for one in run["itls"]])
    start_s = None
    if starts is not None and kept.any():
        start_s = np.array(starts, np.float64)[kept]
        start_s = start_s - start_s.min()
    return Outcome(
        place,
        start_s,
        np.array(run["input_lens"], np.int64)[kept],
        np.array(run["output_lens"], np.int64)[kept],
        ttft_s[kept],
        (ttft_s + gaps_s)[kept],
        failed=int(failed.sum()),
        left_out=int((~failed & ~kept).sum()),
    )
