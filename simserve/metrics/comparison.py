"""A run and its variants, side by side: what compare.json holds, made from the stored runs alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simserve import arrow
from simserve.errors import ScenarioError
from simserve.metrics.measures import (
    AGAINST_MEASURED,
    MEASURES,
    Change,
    Measure,
    changes,
    figures_of,
    value_at,
)
from simserve.metrics.replications import paired_difference, pairs
from simserve.metrics.store import COMPARISON, VARIANTS, StoredRun, canonical_json, read_results

# Differences request by request between two runs of the same requests.
#
# Pairing takes the workload's own spread out: what remains is what the change did to each request.

LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")


def paired(base: pa.Table, variant: pa.Table) -> dict[str, Any]:
    """Return mean, p5, p50 and p95 of variant - base, in ms, over the requests that have both values.

    `shorter` and `longer` are the shares of those requests whose latency fell and rose. Rows are the same
    requests in the same order.
    """
    return {name: _paired_difference(base[name], variant[name]) for name in LATENCIES}


def _paired_difference(base: pa.ChunkedArray, variant: pa.ChunkedArray) -> dict[str, Any] | None:
    change = _floats(variant) - _floats(base)
    change = change[~np.isnan(change)]
    if not change.size:
        return None
    p5, p50, p95 = np.percentile(change, (5, 50, 95))
    return {
        "requests": int(change.size),
        "mean": float(change.mean()),
        "p5": float(p5),
        "p50": float(p50),
        "p95": float(p95),
        "shorter": float((change < 0).mean()),
        "longer": float((change > 0).mean()),
    }


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return arrow.floats(column)


# Published figures beside the same figures of a simulation: how far apart, and why.
#
# A scenario lists them (`published:`), the manifest keeps the list, and tables are made from stored runs.

CAPACITY = "capacity"
"""Highest rate of the runs that keep up with the arrivals and whose p99 latencies meet the SLO."""
MEASURABLE: dict[str, Measure] = {
    measure.key: measure
    for measure in (
        Measure(CAPACITY, "capacity, requests/s", "number", "higher"),
        *AGAINST_MEASURED,
        *MEASURES,
    )
}
"""What a published figure may be about, by key."""


def published_rows(runs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the published figures of stored runs (the first is the base), each with ours and the ratio.

    Figures about runs that are not among them are left out. `ours` is None where a run does not show the
    figure (nothing completed, no run within the SLO).
    """
    base, *_ = runs
    listed = runs[base].manifest.get("published") or []
    wanted = [one for one in listed if {*_names(one.get("of")), *_names(one.get("over"))} <= runs.keys()]
    figures = {name: figures_of(run.summary, run.manifest) for name, run in runs.items()}
    return [_published_row(one, figures, base) for one in wanted]


def _published_row(wanted: dict[str, Any], figures: dict[str, dict[str, Any]], base: str) -> dict[str, Any]:
    measure = MEASURABLE[wanted["measure"]]
    ours = _best(measure, _names(wanted.get("of") or base), figures)
    if "over" in wanted:
        reference = _best(measure, _names(wanted["over"]), figures)
        ours = ours / reference if ours is not None and reference else None
    return {
        "figure": wanted["figure"],
        "source": wanted["source"],
        "differs": wanted.get("differs"),
        "unit": "ratio" if "over" in wanted else measure.unit,
        "published": wanted["value"],
        "ours": ours,
        "ratio": None if ours is None else ours / wanted["value"],
    }


def _names(of: str | Sequence[str] | None) -> Sequence[str]:
    return () if of is None else (of,) if isinstance(of, str) else of


def _best(measure: Measure, names: Sequence[str], figures: dict[str, dict[str, Any]]) -> float | None:
    """Return the best value among runs: lowest where lower is better, else the highest."""
    values = [_value(measure.key, figures[name]) for name in names]
    present = [value for value in values if value is not None]
    pick = min if measure.better == "lower" else max
    return pick(present, default=None)


def _value(key: str, figures: dict[str, Any]) -> float | None:
    if key != CAPACITY:
        return value_at(figures, key)
    whole = figures["whole"]
    limits = (whole["slo"] or {}).get("limits", {})
    tails = {name: whole[name]["p99"] for name in limits}
    met = all(tail is not None and tail <= limits[name] for name, tail in tails.items())
    kept_up = figures["stability"]["verdict"] != "unstable" and figures["counts"]["completed"]
    return figures["rates"]["requests_per_s"] if kept_up and met else None


SCHEMA = 1
"""Version of compare.json; grows when a key changes its meaning or goes away."""


@dataclass(frozen=True)
class StoredComparison:
    """The stored runs by name, the base first, and what compare.json says about them."""

    runs: dict[str, StoredRun]
    table: dict[str, Any]


def write_comparison(folder: Path, base: str, variants: list[str]) -> None:
    """Write compare.json into `folder`, which holds the base and `variants/<name>/` of each variant."""
    runs = _read_runs(folder, base, variants)
    (folder / COMPARISON).write_bytes(canonical_json(compare(runs)).encode())


def read_comparison(folder: Path) -> StoredComparison | None:
    """Return the comparison kept in `folder`, or None if it holds a single run."""
    path = Path(folder) / COMPARISON
    if not path.is_file():
        return None
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ScenarioError(f"{path}: not valid JSON: {error}") from error
    return StoredComparison(_read_runs(Path(folder), table["base"], table["variants"]), table)


def compare(runs: dict[str, StoredRun], measures: Sequence[Measure] = MEASURES) -> dict[str, Any]:
    """Return the comparison of stored runs; the first is the base."""
    base, *variants = runs
    figures = {name: figures_of(run.summary, run.manifest) for name, run in runs.items()}
    replicated = bool(variants) and all(pairs(runs[base].summary, runs[name].summary) for name in variants)
    row = _replicated_row if replicated else _row
    rows = [{**measure._asdict(), **row(figures, base, measure.key)} for measure in measures]
    return {
        "schema": SCHEMA,
        "base": base,
        "variants": variants,
        "changes": {
            name: [asdict(change) for change in _changes(runs[base], runs[name])] for name in variants
        },
        "measures": [row for row in rows if any(row["values"].values())],
        "paired": {name: _paired(runs[base], runs[name]) for name in variants},
        "published": published_rows(runs),
        "verdicts": {name: _verdict(run.summary) for name, run in runs.items()},
        **(_replications(runs[base].summary["replications"]) if replicated else {}),
    }


def requests_sha256(prompt_tokens: np.ndarray, output_tokens: np.ndarray) -> str:
    """Return a hash of what is asked for, in order: runs with equal hashes can be compared by request."""
    columns = (prompt_tokens, output_tokens)
    return sha256(b"".join(column.astype("<i8").tobytes() for column in columns)).hexdigest()


def same_requests(one: StoredRun, other: StoredRun) -> bool:
    """Return True if both runs were given requests of the same lengths in the same order."""
    hashes = [(run.manifest.get("trace") or {}).get("requests_sha256") for run in (one, other)]
    return hashes[0] is not None and hashes[0] == hashes[1]


def _read_runs(folder: Path, base: str, variants: list[str]) -> dict[str, StoredRun]:
    runs = {base: read_results(folder)}
    return runs | {name: read_results(folder / VARIANTS / name) for name in variants}


def _changes(base: StoredRun, variant: StoredRun) -> list[Change]:
    """Return the settings that differ; of a measured run none is known."""
    return [] if base.measured or variant.measured else changes(base.manifest, variant.manifest)


def _row(figures: dict[str, dict[str, Any]], base: str, key: str) -> dict[str, Any]:
    values = {name: value_at(one, key) for name, one in figures.items()}
    reference = values[base]
    return {
        "values": values,
        "differences": {
            name: _difference(reference, value) for name, value in values.items() if name != base
        },
    }


def _difference(base: float | None, value: float | None) -> dict[str, float | None] | None:
    if base is None or value is None:
        return None
    return {"absolute": value - base, "relative": (value - base) / base if base else None}


def _replications(block: dict[str, Any]) -> dict[str, Any]:
    return {"replications": {name: block[name] for name in ("n", "seeds", "confidence")}}


def _replicated_row(figures: dict[str, dict[str, Any]], base: str, key: str) -> dict[str, Any]:
    """Return a row of means over the seeds, with intervals; what no seed changes is as in a single run."""
    plain = _row(figures, base, key)
    found = {name: one["replications"]["measures"].get(key) for name, one in figures.items()}
    if None in found.values():
        return plain | {"intervals": dict.fromkeys(figures)}
    means = {name: one["mean"] for name, one in found.items()}
    differences = {}
    for name in plain["differences"]:
        change = paired_difference(figures[base], figures[name], key)
        assert change is not None  # both have the measure
        relative = change.mean / means[base] if means[base] else None
        differences[name] = {"absolute": change.mean, "relative": relative}
        differences[name] |= {"low": change.low, "high": change.high}
    return {
        "values": means,
        "differences": differences,
        "intervals": {name: _ends(one) for name, one in found.items()},
    }


def _ends(one: dict[str, Any]) -> list[float] | None:
    return None if one["low"] is None else [one["low"], one["high"]]


def _paired(base: StoredRun, variant: StoredRun) -> dict[str, Any] | None:
    """Return the differences request by request; None where the requests are not the same."""
    return paired(base.requests, variant.requests) if same_requests(base, variant) else None


def _verdict(summary: dict[str, Any]) -> dict[str, Any]:
    counts, unstable = summary["counts"], (summary.get("replications") or {}).get("unstable", 0)
    return {
        "requests": counts["requests"],
        "completed": counts["completed"],
        "stability": "unstable" if unstable else summary["stability"]["verdict"],
    }
