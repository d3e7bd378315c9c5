"""What real engines said at start about their memory, against the ledger: room for the KV cache, and terms.

An error is in per cent of the pool, or of 1 GiB where the pool is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from simserve.model.memory import MemoryLedger, outside_shortage, raw_ledger
from simserve.units import GIB
from simserve.validation.memory_start import MemoryRow, NotJudged, Start, start_of

_TERMS = {
    "torch_peak": "activation peak",
    "non_torch": "other",
    "cuda_graphs": "CUDA graphs",
}
"""Lines of the ledger by what engines print; weights are all lines in between."""
_NOT_WEIGHTS = {"outside the share", *_TERMS.values(), "KV cache"}


@dataclass(frozen=True)
class MemoryOutcome:
    """One row: what the ledger says beside what the engine said, or why it is not judged."""

    row: MemoryRow
    reason: str = ""
    """Why it is not judged; empty if it is."""
    starts: bool = False
    """What the ledger says."""
    unit: str = "GiB"
    """Of `ours` and `theirs`: GiB per GPU, or tokens of one replica."""
    ours: float = 0.0
    theirs: float | None = None
    """Room for the KV cache; None where the row does not say."""
    error_pct: float | None = None
    terms: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """Ours and theirs in GiB; None where either has no such term."""

    @property
    def started(self) -> bool:
        """Return True if the engine came up."""
        return self.row.text("outcome") == "started"

    @property
    def group(self) -> str:
        """Engine and release."""
        return f"{self.row.text('engine')} {self.row.text('version', '(no version)')}"


def judge(row: MemoryRow, folder: Path) -> MemoryOutcome:
    """Return what the ledger says of a row (`folder`: see `start_of`); raises `TraceError`."""
    try:
        start = start_of(row, folder)
    except NotJudged as why:
        return MemoryOutcome(row, str(why))
    ledger = raw_ledger(start.settings)
    starts = ledger.kv_tokens >= start.max_model_len and not outside_shortage(start.settings, ledger)
    unit, ours, theirs, scale = _room(row, ledger, start)
    error = None if theirs is None else 100 * (ours - theirs) / scale
    return MemoryOutcome(row, "", starts, unit, ours, theirs, error, _terms(row, ledger))


def _room(row: MemoryRow, ledger: MemoryLedger, start: Start) -> tuple[str, float, float | None, float]:
    """Return unit, ours, theirs, and of what an error is a share."""
    gib = row.number("min_available_kv_gib")
    gib = row.number("available_kv_gib") if gib is None else gib
    tokens = row.count("kv_tokens")
    if gib is None and tokens is not None:
        ours = ledger.capacity_tokens(start.max_model_len)
        return "tokens", ours, tokens, max(tokens, GIB / ledger.kv_bytes_per_token)
    return "GiB", ledger.kv_bytes / GIB, gib, max(gib or 0.0, 1.0)


def _terms(row: MemoryRow, ledger: MemoryLedger) -> dict[str, tuple[float | None, float | None]]:
    lines = {line.name: line.bytes / GIB for line in ledger.lines}
    weights = sum(size for name, size in lines.items() if name not in _NOT_WEIGHTS)
    theirs = {name: row.number(f"{name}_gib") for name in ("weights", "torch_peak", "non_torch")}
    estimate = row.number("cuda_graph_estimated_gib")  # what a release that subtracts graphs subtracts
    theirs["cuda_graphs"] = row.number("cuda_graph_actual_gib") if estimate is None else estimate
    ours = {"weights": weights, **{name: lines.get(line) for name, line in _TERMS.items()}}
    return {name: (ours[name], theirs[name]) for name in theirs}


def summary(outcomes: Sequence[MemoryOutcome]) -> dict[str, Any]:
    """Return counts, and median and 90th percentile of absolute errors of the rows that came up."""
    judged = [one for one in outcomes if not one.reason]
    up = [one for one in judged if one.started]
    groups = dict.fromkeys(one.group for one in up)
    return {
        "rows": len(outcomes),
        "judged": len(judged),
        "wrongly_refused": [one.row.text("run_id") for one in up if not one.starts],
        "wrongly_accepted": [one.row.text("run_id") for one in judged if one.starts and not one.started],
        "all": _errors(up),
        "by_group": {name: _errors([one for one in up if one.group == name]) for name in groups},
        "terms_gib": _term_errors(judged),
    }


def _errors(outcomes: Sequence[MemoryOutcome]) -> dict[str, float | int | None]:
    errors = [abs(one.error_pct) for one in outcomes if one.error_pct is not None]
    if not errors:
        return {"rows": 0, "median_pct": None, "p90_pct": None}
    return {
        "rows": len(errors),
        "median_pct": float(np.median(errors)),
        "p90_pct": float(np.percentile(errors, 90)),
    }


def _term_errors(outcomes: Sequence[MemoryOutcome]) -> dict[str, dict[str, float | int]]:
    """Return, for each term, rows that have it on both sides and the median of ours minus theirs."""
    terms: dict[str, dict[str, float | int]] = {}
    for name in ("weights", *_TERMS):
        pairs = [one.terms[name] for one in outcomes]
        gaps = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
        if gaps:
            worst = max(gaps, key=abs)
            terms[name] = {"rows": len(gaps), "median": float(np.median(gaps)), "worst": worst}
    return terms


def as_json(outcomes: Sequence[MemoryOutcome]) -> dict[str, Any]:
    """Return the summary, the rows that were judged, and those that were not with the reason."""
    return {
        "summary": summary(outcomes),
        "rows": [
            {
                "run_id": one.row.text("run_id"),
                "outcome": one.row.text("outcome"),
                "starts": one.starts,
                "unit": one.unit,
                "ours": one.ours,
                "theirs": one.theirs,
                "error_pct": one.error_pct,
                "terms_gib": {
                    name: {"ours": ours, "theirs": theirs} for name, (ours, theirs) in one.terms.items()
                },
            }
            for one in outcomes
            if not one.reason
        ],
        "not_judged": [
            {"run_id": one.row.text("run_id"), "reason": one.reason} for one in outcomes if one.reason
        ],
    }
