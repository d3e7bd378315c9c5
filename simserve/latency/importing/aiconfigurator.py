"""Import kernel latencies from aiconfigurator-core: an unpacked copy, a wheel, or the installed package.

Takes one backend per operation (`aiconfigurator_tables.SOURCES`), the newest version that is complete,
and the median where a shape was measured several times. Rows whose values another GPU's file repeats are
left out.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from simserve.errors import ProfileError
from simserve.latency.importing.aiconfigurator_tables import SOURCES, Columns, Source
from simserve.latency.tables.profiles import ProfileTable, write_profile

PACKAGE = "aiconfigurator_core"
DATA = f"{PACKAGE}/systems/data/"
OUR_NAMES = {"rtx_pro_6000_server": "rtx_pro_6000"}
"""GPUs whose folder is called otherwise here."""
COMPLETE = 0.25
"""Share of the largest version's rows from which a version counts as complete."""
LICENCE = {
    "licence": "Apache-2.0",
    "holder": "NVIDIA CORPORATION & AFFILIATES",
    "name": "aiconfigurator-core",
}


class Archive:
    """The source's files by path below `systems/data`."""

    def __init__(self, where: str) -> None:
        """`where` is "installed", a wheel, or a folder that holds `systems/data`; raises `ProfileError`."""
        self.version = "unknown"
        if where == "installed":
            found = importlib.util.find_spec(PACKAGE)
            if found is None or not found.submodule_search_locations:
                raise ProfileError("aiconfigurator-core is not installed: pip install aiconfigurator-core")
            self.version = importlib.metadata.version("aiconfigurator-core")
            where = next(iter(found.submodule_search_locations))
        path = Path(where)
        self._wheel = zipfile.ZipFile(path) if path.suffix == ".whl" and path.is_file() else None
        if self._wheel:
            self.version = path.name.split("-")[1]
            names = [info.filename for info in self._wheel.infolist()]
            self.names = [name.removeprefix(DATA) for name in names if name.startswith(DATA)]
            return
        self._root = next((it for it in (path / "systems/data", path / DATA, path) if it.is_dir()), path)
        self.names = [str(file.relative_to(self._root)) for file in self._root.glob("*/*/*/*/*.parquet")]
        if not self.names:
            raise ProfileError(
                f"{where}: no folder systems/data with <gpu>/<family>/<backend>/<version>/*.parquet"
            )

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        return self._wheel.read(DATA + name) if self._wheel else (self._root / name).read_bytes()

    def gpus(self) -> list[str]:
        """Return the GPUs that have tables, as we call them."""
        theirs = {name.split("/")[0] for name in self.names if name.endswith(".parquet")}
        return sorted(OUR_NAMES.get(name, name) for name in theirs)


def import_aiconfigurator(where: str, target: Path, gpus: list[str]) -> Iterator[tuple[str, str, int]]:
    """Write `<target>/<gpu>/<op>.parquet` for each GPU (all if empty); yield (gpu, op, rows) as they are
    done."""
    archive = Archive(where)
    unknown = sorted(set(gpus) - set(archive.gpus()))
    if unknown:
        raise ProfileError(f"no tables for {', '.join(unknown)}; there are {', '.join(archive.gpus())}")
    seen: dict[tuple[str, ...], str] = {}
    for gpu in gpus or archive.gpus():
        parts: dict[str, list[tuple[Columns, dict[str, Any]]]] = defaultdict(list)
        for source in SOURCES:
            for name in _files(archive, gpu, source):
                parts[source.op] += _rows(archive, name, source, seen)
        for op, pieces in parts.items():
            if not pieces:
                continue
            table = _table(target / gpu / f"{op}.parquet", op, gpu, archive.version, pieces)
            write_profile(table.path, table)
            yield gpu, op, len(table)


def _files(archive: Archive, gpu: str, source: Source) -> list[str]:
    """Return the files of the versions to take."""
    theirs = next((name for name, ours in OUR_NAMES.items() if ours == gpu), gpu)
    pattern = re.compile(rf"{re.escape(theirs)}/{source.folder}/([^/]+)/{source.file}\.parquet")
    found = {match[1]: name for name in archive.names if (match := pattern.fullmatch(name))}
    if source.versions:
        return [found[version] for version in source.versions if version in found]
    sizes = {
        version: pq.read_metadata(io.BytesIO(archive.read(name))).num_rows for version, name in found.items()
    }
    whole = [version for version in found if sizes[version] >= COMPLETE * max(sizes.values())]
    return [found[max(whole, key=_number)]] if whole else []


def _number(version: str) -> list[int]:
    """Sort key of a version: release candidates before the release."""
    return [int(part) for part in re.findall(r"\d+", version.replace("rc", ".0."))] + [0, 0]


def _rows(
    archive: Archive, name: str, source: Source, seen: dict[tuple[str, ...], str]
) -> list[tuple[Columns, dict[str, Any]]]:
    raw = archive.read(name)
    table = pq.read_table(io.BytesIO(raw))
    theirs = {column: table.column(column).to_numpy() for column in table.column_names}
    gpu, _, backend, version, _ = name.split("/")
    pieces = []
    for ours in source.convert(theirs):
        keep = ours.pop("_keep", np.ones(len(theirs["version"]), bool))
        values = hashlib.sha256(np.sort(ours["latency_us"]).tobytes()).hexdigest()
        first = seen.setdefault((source.op, values), gpu)
        if first != gpu or not len(ours["latency_us"]):
            continue
        about = {"path": name, "sha256": hashlib.sha256(raw).hexdigest(), "rows": len(ours["latency_us"])}
        size = len(ours["latency_us"])
        ours |= {
            "backend": np.full(size, "deepep" if source.op == "ep_a2a" else backend, object),
            "backend_version": np.full(
                size, f"sglang-{version}" if source.op == "ep_a2a" else version, object
            ),
            "kernel": theirs["kernel_source"][keep],
            "source": np.full(size, "aic", object),
        }
        pieces.append((ours, about))
    return pieces


def _table(
    path: Path, op: str, gpu: str, version: str, pieces: list[tuple[Columns, dict[str, Any]]]
) -> ProfileTable:
    keys = next(source.keys for source in SOURCES if source.op == op)
    columns = {name: np.concatenate([piece[name] for piece, _ in pieces]) for name in pieces[0][0]}
    columns = {name: _plain(name, column) for name, column in columns.items()}
    timed = columns["latency_us"] > 0
    columns = {name: column[timed] for name, column in columns.items()}
    columns = _median_of_repeats(columns, (*keys, "backend", "backend_version", "kernel"))
    about = {
        "format_version": 1, "op": op, "gpu": gpu, "key_columns": list(keys), "sweep_axis": keys[-1],
        "value_column": "latency_us", "unit": "us", "sources": {"aic": {**LICENCE, "version": version}},
        "files": [about for _, about in pieces],
    }  # fmt: skip
    return ProfileTable(path, columns, about, len(columns["latency_us"]))


def _plain(name: str, column: np.ndarray) -> np.ndarray:
    if column.dtype == object or name in ("latency_us", "alpha"):
        return column
    return column.astype(np.int64)


def _median_of_repeats(columns: Columns, keys: tuple[str, ...]) -> Columns:
    codes = np.stack([np.unique(columns[key], return_inverse=True)[1] for key in keys])
    _, first, group, counts = np.unique(
        codes, axis=1, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((columns["latency_us"], group.ravel()))
    sorted_us = columns["latency_us"][order]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    middle = (sorted_us[starts + (counts - 1) // 2] + sorted_us[starts + counts // 2]) / 2
    merged = {name: column[first] for name, column in columns.items()}
    merged["latency_us"] = middle.astype(np.float32)
    merged["n_merged"] = counts.astype(np.uint16)
    merged["quality"] = (counts > 1).astype(np.uint8)
    return merged
