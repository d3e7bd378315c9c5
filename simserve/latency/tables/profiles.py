"""Where kernel measurements are found: the user's folders first, then those that ship with simserve.

A folder holds `<gpu>/<op>.parquet`. Files are read when first asked for, and rows that the quality bits
exclude are left out; `ProfileStore.notes` says which and how many.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from simserve import arrow
from simserve.errors import ProfileError, nearest
from simserve.paths import data_dir

# Kernel profile files: one Parquet file per (GPU, operation), columns in, columns out.
#
# A file has key columns (the shape), `backend backend_version kernel source`, `latency_us`, `n_merged` and
# `quality` (a bit field). The Parquet metadata key `simserve.profile` holds JSON with what the rows are; a
# column with one value only is stored there too (`constants`), which keeps the files small.

METADATA_KEY = b"simserve.profile"
DROPPED_QUALITY = 4 | 64
"""Quality bits whose rows a reader leaves out: 4 = EP row that follows tokens * topk instead of the routed
tokens, 64 = the source holds the same values for another GPU."""

Column = NDArray[Any]


class ProfileTable:
    """Rows of one profile file, and what they are."""

    def __init__(
        self, path: Path, columns: dict[str, Column], about: dict[str, Any], rows: int, dropped: int = 0
    ) -> None:
        """`columns` without those in `about["constants"]`; `dropped`: rows that quality bits excluded."""
        self.path = path
        self.about = about
        self.dropped = dropped
        self._columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    @property
    def names(self) -> list[str]:
        """Names of all columns, constant ones included."""
        return [*self._columns, *self.about.get("constants", {})]

    @property
    def rotating(self) -> bool:
        """True if every call had inputs of its own, so that no time is that of data found in a cache."""
        return bool(self.about.get("rotating_inputs", False))

    def values(self, column: str) -> list[Any]:
        """Return the distinct values of a column, sorted."""
        values = self.column(column)
        if values.dtype == object:  # sorting all words takes twenty times as long
            return sorted(set(values.tolist()))
        return np.unique(values).tolist()

    def select(self, **equal: Any) -> ProfileTable:
        """Return the rows in which each named column has the given value."""
        mask = np.ones(self._rows, bool)
        for name, value in equal.items():
            mask &= self.column(name) == value
        return self.where(mask)

    def where(self, mask: NDArray[np.bool_]) -> ProfileTable:
        """Return the rows for which `mask` (bool[rows]) is true."""
        columns = {name: column[mask] for name, column in self._columns.items()}
        return ProfileTable(self.path, columns, self.about, int(mask.sum()), self.dropped)

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Return a numeric column as float64."""
        return self.column(column).astype(np.float64)

    def column(self, name: str) -> Column:
        """Return a column; raises `ProfileError` naming the nearest one if there is none of that name."""
        if name in self._columns:
            return self._columns[name]
        constants = self.about.get("constants", {})
        if name not in constants:
            hint = nearest(name, self.names)
            raise ProfileError(f"{self.path}: no column {name!r}{hint}; has {', '.join(self.names)}")
        return np.full(self._rows, constants[name], object if isinstance(constants[name], str) else None)


def read_profile(path: Path, keep_all: bool = False) -> ProfileTable:
    """Read a profile file, leaving out rows with `DROPPED_QUALITY` bits unless `keep_all`.

    Raises `ProfileError` if the file is not a profile.
    """
    try:
        rows = arrow.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ProfileError(f"{path}: cannot be read as Parquet: {error}") from error
    about = json.loads((rows.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    if "key_columns" not in about:
        raise ProfileError(f"{path}: Parquet metadata key {METADATA_KEY.decode()!r} is missing or incomplete")
    columns = {name: _values(rows.column(name)) for name in rows.column_names}
    table = ProfileTable(path, columns, about, len(rows))
    if keep_all:
        return table
    bad = (table.column("quality").astype(np.int64) & DROPPED_QUALITY) != 0
    if bad.any():
        table = table.where(~bad)
        table.dropped = int(bad.sum())
    return table


def _values(column: pa.ChunkedArray) -> Column:
    """Return a column without nulls: numbers, or words as objects."""
    return arrow.objects(column) if pa.types.is_dictionary(column.type) else arrow.numbers(column, np.nan)


def write_profile(path: Path, table: ProfileTable) -> None:
    """Write the rows sorted by key, columns of one value moved to the metadata, compressed hard."""
    keys = [table.column(name) for name in reversed(table.about["key_columns"])]
    order = np.lexsort([_sortable(key) for key in keys])
    constants: dict[str, Any] = {}
    columns: dict[str, Column] = {}
    for name in table.names:
        column = table.column(name)
        distinct = table.values(name)
        if name != "latency_us" and len(distinct) == 1 and len(table) > 1:
            constants[name] = distinct[0]
        else:
            columns[name] = column[order]
    text = json.dumps({**table.about, "constants": constants}, sort_keys=True, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table(columns).replace_schema_metadata({METADATA_KEY: text.encode()}),
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in columns if name != "latency_us"],  # pyright: ignore
        column_encoding={"latency_us": "BYTE_STREAM_SPLIT"},
        write_statistics=False,
    )


def _sortable(column: Column) -> Column:
    """Return numbers that sort as the column does (lexsort cannot compare text objects)."""
    return np.unique(column, return_inverse=True)[1] if column.dtype == object else column


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, for manifests."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class ProfileStore:
    """Tables of kernel latencies by (GPU, operation)."""

    def __init__(self, folders: Sequence[Path] = (), shipped: bool = True) -> None:
        """Search `folders` in order, then (if `shipped`) what comes with simserve."""
        self.folders = [Path(folder) for folder in folders] + (
            [data_dir("kernels_profile")] if shipped else []
        )
        self._tables: dict[tuple[str, str], ProfileTable | None] = {}

    def table(self, gpu: str, op: str) -> ProfileTable | None:
        """Return the table, or None if no folder has the file."""
        key = (gpu, op)
        if key not in self._tables:
            path = self.path(gpu, op)
            self._tables[key] = read_profile(path) if path else None
        return self._tables[key]

    def path(self, gpu: str, op: str) -> Path | None:
        """Return the first folder's file for (gpu, op), or None."""
        paths = (folder / gpu / f"{op}.parquet" for folder in self.folders)
        return next((path for path in paths if path.is_file()), None)

    def gpus(self) -> list[str]:
        """Return the names of all GPUs that have at least one table."""
        return sorted({file.parent.name for folder in self.folders for file in folder.glob("*/*.parquet")})

    def ops(self, gpu: str) -> list[str]:
        """Return the operations measured on a GPU."""
        return sorted({file.stem for folder in self.folders for file in folder.glob(f"{gpu}/*.parquet")})

    def hashes(self) -> dict[str, str]:
        """Return `<gpu>/<op>` -> SHA-256 of every file read so far, for the manifest."""
        used = {key: table for key, table in self._tables.items() if table is not None}
        return {f"{gpu}/{op}": file_sha256(table.path) for (gpu, op), table in sorted(used.items())}

    def notes(self) -> list[str]:
        """Return a sentence for each table read so far that lost rows to the quality bits."""
        return [
            f"{gpu}/{op}: {table.dropped} rows left out by their quality bits, {len(table)} used"
            for (gpu, op), table in sorted(self._tables.items())
            if table is not None and table.dropped
        ]


@lru_cache(maxsize=1)
def shipped_profiles() -> ProfileStore:
    """Return the store of what comes with simserve (one per process, so that files are read once)."""
    return ProfileStore()
