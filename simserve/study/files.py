"""The files that a study leaves: results.parquet (a row per run), study.json, scenario.yaml, report.html."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from ruamel.yaml import YAML

from simserve.deploy.build import Deployment
from simserve.metrics import Summary
from simserve.metrics.distribution import Batch
from simserve.metrics.measures import figures_of, limited_by
from simserve.metrics.slo_verdict import Evidence
from simserve.metrics.store import canonical_json
from simserve.metrics.targets import batches_of, targets_of
from simserve.scenario.load import LoadedScenario, changed, find, shipped

# What is kept of one run of a study: numbers by column, and the batches of its targets.

Row = dict[str, Any]

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queueing_ms")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
STEADY = ("hit_rate", "kv_use_mean", "preemptions")
COUNTS = ("requests", "completed", "refused", "unfinished")
USES = ("busy", "mfu", "mbu")
BASES = ("measured", "interpolated", "extrapolated", "analytic")
"""Where step times come from; `NAME_share` is its share of the simulated busy time."""


def columns() -> list[str]:
    """Return the names of the numbers of a row."""
    names = [
        "gpus",
        "price_per_hour",
        "cost_per_million_output_tokens",
        "attainment",
        "goodput_requests_per_s",
    ]
    names += ["goodput_per_gpu", "output_tokens_per_s_per_gpu", *COUNTS, *RATES, *STEADY, *USES]
    return [*names, *(f"{key}.{name}" for key in LATENCIES for name in STATISTICS), *_SHARES]


_SHARES = (*(f"{name}_share" for name in BASES), "estimated_share")
"""The last is that of all that is not within a measured range."""


def simulate_row(deployment: Deployment) -> Row:
    """Simulate a deployment once; the same deployment gives the same row."""
    result = deployment.simulate()
    row = row_of(deployment.summarize(result))
    targets = targets_of(deployment.slo)
    row["slo"] = _plain(batches_of(result, targets))
    row["slo_ordered"] = _plain(batches_of(result, targets, whole=True))
    row["simulated_requests"] = len(result)
    return row


def evidence_of(row: Row) -> Evidence:
    """Return what a row says about the targets."""
    return Evidence(row["slo"], row["stability"], row.get("needed_requests"))


def _plain(batches: dict[str, list[Batch]]) -> dict[str, list[list[int]]]:
    return {name: [list(batch) for batch in found] for name, found in batches.items()}


def row_of(summary: Summary) -> Row:
    """Return the numbers of a summary by column: `rates`, and latencies of the whole run."""
    figures = figures_of(summary.to_dict(), {})
    whole, steady, rates, counts = (figures[name] for name in ("whole", "steady", "rates", "counts"))
    gpus = figures["deployment"]["gpus"]
    slo = steady["slo"] or {}
    goodput, output = rates["goodput_requests_per_s"], rates["output_tokens_per_s"]
    row: Row = {
        "gpus": gpus,
        "price_per_hour": figures["price_per_hour"],
        "cost_per_million_output_tokens": figures["cost_per_million_output_tokens"],
        "attainment": slo.get("attainment"),
        "goodput_requests_per_s": goodput,
        "goodput_per_gpu": goodput / gpus if goodput is not None and gpus else None,
        "output_tokens_per_s_per_gpu": output / gpus if output is not None and gpus else None,
        "stability": figures["stability"]["verdict"],
        "arrival_period_s": figures["stability"]["arrival_period_s"],
        "needed_s": figures["stability"]["needed_s"],
        "needed_requests": figures["stability"]["needed_requests"],
    }
    basis = figures["provenance"]
    row |= {f"{name}_share": basis.get(name, 0.0) for name in BASES}
    row["estimated_share"] = row["extrapolated_share"] + row["analytic_share"]
    row |= {name: counts[name] for name in COUNTS} | {name: rates[name] for name in RATES}
    row |= {name: steady[name] for name in STEADY}
    row |= {name: _mean(figures["pools"], name) for name in USES}
    for key in LATENCIES:
        row |= {f"{key}.{name}": whole[key][name] for name in STATISTICS}
    row["pools"] = [
        {name: pool[name] for name in ("name", "gpus", "busy", "mfu", "mbu", "kv_use_mean", "kv_use_peak")}
        for pool in figures["pools"]
    ]
    row["limited_by"] = limited_by(figures["limits"])
    row["bottleneck"] = limited_by([{**limit, "times_load": None} for limit in figures["limits"]])
    row["warnings"] = summary.warnings
    return row


def _mean(pools: list[dict[str, Any]], name: str) -> float | None:
    """Return the mean over all GPUs; None if a pool has no figure."""
    values = [(pool["gpus"], pool[name]) for pool in pools]
    if not values or any(value is None for _, value in values):
        return None
    return sum(gpus * value for gpus, value in values) / sum(gpus for gpus, _ in values)


_WHOLE = {
    "point",
    "replication",
    "seed",
    "simulated_requests",
    "requests",
    "completed",
    "refused",
    "unfinished",
}


def write_table(path: Path, records: Sequence[dict[str, Any]], settings: Sequence[str]) -> None:
    """Write a row per run: which point, its settings (one column per path), status, reason and numbers.

    `records` hold point, replication, seed, settings, status, reason and row. The same runs give the same
    bytes, in whatever order they were done.
    """
    ordered = sorted(records, key=lambda record: (record["point"], record["replication"] or 0))
    arrays: dict[str, pa.Array] = {
        name: pa.array([record[name] for record in ordered], pa.int64())
        for name in ("point", "replication", "seed")
    }
    for name in settings:
        arrays[name] = _typed([record["settings"].get(name) for record in ordered])
    for name in ("status", "reason"):
        arrays[name] = pa.array([record[name] for record in ordered], pa.string())
    for name in [*columns(), "simulated_requests"]:
        kind = pa.int64() if name in _WHOLE else pa.float64()
        arrays[name] = pa.array([_value(record["row"], name) for record in ordered], kind)
    arrays["stability"] = pa.array([_value(record["row"], "stability") for record in ordered], pa.string())
    _replace(path, lambda to: pq.write_table(pa.table(arrays), to, compression="zstd"))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write canonical JSON."""
    _replace(path, lambda to: to.write_bytes(canonical_json(value).encode()))


def write_text(path: Path, text: str) -> None:
    """Write text."""
    _replace(path, lambda to: to.write_bytes(text.encode()))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    partial = path.with_name(path.name + ".partial")
    write(partial)
    os.replace(partial, path)


def _value(row: Row | None, name: str) -> Any:
    return None if row is None else row.get(name)


def _typed(values: list[Any]) -> pa.Array:
    """Return a column of one kind: numbers if all are, else words."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int}:
        return pa.array(values, pa.int64())
    if kinds <= {bool}:
        return pa.array(values, pa.bool_())
    if kinds <= {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    words = [
        value if value is None or isinstance(value, str) else canonical_json(value).strip()
        for value in values
    ]
    return pa.array(words, pa.string())


# The points that a study recommends, each as a scenario file that `simserve run` takes.
#
# A file holds the study's scenario with the point's values and without the studies. Files that the scenario
# names by relative paths keep being found: their names start from the result folder.

BEST = "best.yaml"
NAMES = re.compile(r"best\.yaml|point-\d+\.yaml")
"""Names of the files that studies write."""
MOST_COMMANDS = 3

Plain = dict[str, Any]


def write_recommended(it: LoadedScenario, folder: Path, study: dict[str, Any]) -> None:
    """Write a file for each recommended row of a study, and its name to the row as `file`.

    Of a size these are all deployments that meet the SLO, the cheapest first; of a capacity the highest load
    that is shown to be carried; of a search the points that no other beats. Files of an earlier study go.
    """
    for entry in sorted(folder.iterdir()):
        if NAMES.fullmatch(entry.name):
            entry.unlink()
    for name, row, changes in _recommended(study):
        row["file"] = name
        plain = _from_folder(changed(it, changes).document.data, it.folder, folder)
        write_text(folder / name, f"# Recommended by: {study['command']}\n{_yaml(plain)}")


def run_commands(study: dict[str, Any], folder: Path) -> list[str]:
    """Return the lines that say how to simulate what a study recommends."""
    names = [name for name, _, _ in _recommended(study)]
    lines = [f"Run it: {shlex.join(['simserve', 'run', str(folder / name)])}" for name in names]
    more = len(lines) - MOST_COMMANDS
    return lines[:MOST_COMMANDS] + ([f"Run it: {more:,} more files in {folder}"] if more > 0 else [])


def _recommended(study: dict[str, Any]) -> list[tuple[str, Row, Mapping[str, Any]]]:
    """Return the file, the row and the changed values by path of each recommended point."""
    if study["kind"] == "size":
        return [
            (f"point-{i}.yaml" if i > 1 else BEST, row, {"pools": row["pools"], **row["keys"]})
            for i, row in enumerate(study["feasible"], 1)
        ]
    if study["kind"] == "capacity":
        low = study["capacity"]["low"]
        met = [row for row in study["points"] if low is not None and row["load"] <= low]
        return [(BEST, row, row["settings"]) for row in met[-1:]]
    by_number = {row["point"]: row for row in study["points"]}
    rows = [by_number[number] for number in study["front"]]
    return [(f"point-{row['point']}.yaml", row, {**row["settings"], **row["prices"]}) for row in rows]


def _yaml(plain: Plain) -> str:
    yaml = YAML()
    yaml.width = 110
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = StringIO()
    yaml.dump(plain, text)
    return text.getvalue()


def _from_folder(plain: Plain, base: Path, folder: Path) -> Plain:
    """Return a scenario of `base` with names of files that are found from `folder`."""

    def renamed(mapping: Any, *keys: str) -> Any:
        if not isinstance(mapping, dict):
            return mapping
        named = {key: _name(mapping[key], base, folder) for key in keys if isinstance(mapping.get(key), str)}
        return {**mapping, **named}

    plain = {**plain, "workload": renamed(plain["workload"], "trace"), **_renamed_model(plain, base, folder)}
    plain["engine"] = renamed(plain["engine"], "overhead")
    if "profiles" in plain:
        plain["profiles"] = [_name(name, base, folder) for name in plain["profiles"]]
    plain["pools"] = [
        {key: renamed(value, *_FILES_OF_A_POOL.get(key, ())) for key, value in pool.items()}
        for pool in plain["pools"]
    ]
    return plain


_FILES_OF_A_POOL = {"engine": ("overhead",), "expert_load": ("path",), "speculation": ("model",)}


def _renamed_model(plain: Plain, base: Path, folder: Path) -> Plain:
    """Return the model's new name if it is that of a file or folder, not of a preset."""
    name = plain["model"]
    path = find(name, base)
    is_path = path is not None and (path.is_dir() or name.endswith(".json"))
    return {"model": _name(name, base, folder)} if is_path else {}


def _name(name: str, base: Path, folder: Path) -> str:
    """Return `name` as it is if it is absolute, ships or names no file, else relative to `folder`."""
    path, ours = find(name, base), shipped(name)
    if path is None or Path(name).is_absolute() or (ours is not None and path.resolve() == ours.resolve()):
        return name
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
