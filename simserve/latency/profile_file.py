"""Kernel profile files: one Parquet file per (GPU, operation), columns in, columns out.

A file has key columns (the shape), `backend backend_version kernel source`, `latency_us`, `n_merged` and
`quality` (a bit field). The Parquet metadata key `simserve.profile` holds JSON with what the rows are; a column
with one value only is stored there too (`constants`), which keeps the files small.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simserve.errors import ProfileError, nearest

METADATA_KEY = b"simserve.profile"
DROPPED_QUALITY = 4 | 64
"""Quality bits whose rows a reader leaves out: 4 = EP row that follows tokens * topk instead of the routed
tokens, 64 = the source holds the same values for another GPU."""


class ProfileTable:
    """Rows of one profile file, and what they are."""

    def __init__(self, path: Path, rows: pa.Table, about: dict[str, Any], dropped: int) -> None:
        """`rows` without the rows that quality bits exclude; `dropped` says how many those were."""
        self.path = path
        self.rows = rows
        self.about = about
        self.dropped = dropped

    def __len__(self) -> int:
        return self.rows.num_rows

    def values(self, column: str) -> list[Any]:
        """Return the distinct values of a key column, sorted."""
        return sorted(pc.unique(self._column(column)).to_pylist())

    def select(self, **equal: Any) -> ProfileTable:
        """Return the rows in which each named column has the given value."""
        mask = None
        for column, value in equal.items():
            hit = pc.equal(self._column(column), value)
            mask = hit if mask is None else pc.and_(mask, hit)
        rows = self.rows if mask is None else self.rows.filter(mask)
        return ProfileTable(self.path, rows, self.about, self.dropped)

    def numbers(self, column: str) -> np.ndarray:
        """Return a numeric column as float64."""
        return self._column(column).to_numpy().astype(np.float64)

    def words(self, column: str) -> list[str]:
        """Return a text column."""
        return self._column(column).to_pylist()

    def _column(self, column: str) -> pa.ChunkedArray:
        if column not in self.rows.column_names:
            known = self.rows.column_names
            raise ProfileError(
                f"{self.path}: no column {column!r}{nearest(column, known)}; has {', '.join(known)}"
            )
        return self.rows.column(column)


def read_profile(path: Path, keep_all: bool = False) -> ProfileTable:
    """Read a profile file, leaving out rows with `DROPPED_QUALITY` bits unless `keep_all`.

    Raises `ProfileError` if the file is not a profile.
    """
    try:
        rows = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ProfileError(f"{path}: cannot be read as Parquet: {error}") from error
    about = json.loads((rows.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    if "key_columns" not in about:
        raise ProfileError(f"{path}: Parquet metadata key {METADATA_KEY.decode()!r} is missing or incomplete")
    for name, value in about.get("constants", {}).items():
        rows = rows.append_column(name, pa.repeat(value, len(rows)))
    rows = _plain_text(rows.replace_schema_metadata(None))
    dropped = 0
    if not keep_all:
        good = pc.equal(pc.bit_wise_and(rows["quality"].cast(pa.int64()), DROPPED_QUALITY), 0)
        kept = rows.filter(good)
        dropped = len(rows) - len(kept)
        rows = kept
    return ProfileTable(path, rows, about, dropped)


def write_profile(path: Path, rows: pa.Table, about: dict[str, Any]) -> None:
    """Write `rows` sorted by key, columns of one value moved to the metadata, compressed hard."""
    rows = _plain_text(rows).sort_by([(name, "ascending") for name in about["key_columns"]])
    constants = dict(about.get("constants", {}))
    for name in rows.column_names:
        distinct = pc.unique(rows[name])
        if name != "latency_us" and len(distinct) == 1 and len(rows) > 1:
            constants[name] = distinct[0].as_py()
            rows = rows.drop_columns([name])
    about = {**about, "constants": constants}
    text = json.dumps(about, sort_keys=True, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        rows.replace_schema_metadata({METADATA_KEY: text.encode()}),
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in rows.column_names if name != "latency_us"],
        column_encoding={"latency_us": "BYTE_STREAM_SPLIT"},
        write_statistics=False,
    )


def _plain_text(rows: pa.Table) -> pa.Table:
    """Turn dictionary columns into text columns (sorting and comparing want those)."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            rows = rows.set_column(index, field.name, rows.column(index).cast(pa.string()))
    return rows


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, for manifests."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
