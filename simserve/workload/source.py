"""A trace file as it lies on disk: its bytes, its hash, and the places in it that errors must name."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from simserve.errors import TraceError, nearest
from simserve.workload.json_list import elements, is_lines, list_start

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"
_SHOWN = 60


@dataclass(frozen=True)
class TraceFile:
    """An opened trace file: gzip and zstd (by their first bytes) and a byte order mark are taken off."""

    path: Path
    data: bytes
    sha256: str
    """Hash of the file as it lies on disk."""

    @classmethod
    def open(cls, path: str | Path) -> TraceFile:
        """Read `path`. Raises `TraceError` if it is missing, no file, or damaged where compressed."""
        path = Path(path)
        if path.is_dir():
            raise TraceError(f"{path}: is a folder, not a trace file")
        if not path.exists():
            siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            raise TraceError(f"{path}: no such trace file{nearest(path.name, siblings)}")
        try:
            stored = path.read_bytes()
        except OSError as error:
            raise TraceError(
                f"{path}: cannot be read ({error.strerror}); allowed is a readable file"
            ) from error
        data = _decompressed(path, stored)
        return cls(path, data.removeprefix(_BOM), hashlib.sha256(stored).hexdigest())

    @cached_property
    def is_parquet(self) -> bool:
        """Whether the bytes are a Parquet file."""
        return self.data.startswith(b"PAR1")

    @cached_property
    def head(self) -> str:
        """First non-blank line, stripped; empty for an empty or a binary file."""
        for line in self.data[: 1 << 20].splitlines():
            if line.strip():
                return line.decode("utf-8", "replace").strip()
        return ""

    @cached_property
    def is_json(self) -> bool:
        """Whether the content begins as a JSON object or list does."""
        return self.head.startswith(("{", "["))

    @cached_property
    def first_row(self) -> str:
        """Text of the first JSON row: a line of JSON lines, or an element of a list; empty if not JSON."""
        if not self.is_json:
            return ""
        text = self.data.decode("utf-8", "replace")
        start = list_start(text)
        if start is not None:
            try:
                begin, end, _ = next(elements(text, start, json.JSONDecoder()))
            except (StopIteration, ValueError, RecursionError):
                return self.head
            return text[begin:end]
        if is_lines(text):
            return self.head
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return self.head
        return text

    @cached_property
    def header(self) -> frozenset[str]:
        """Column names, if the file is a CSV with a header."""
        if self.is_parquet or self.is_json:
            return frozenset()
        return frozenset(name.strip().strip('"') for name in self.head.split(","))

    def text(self) -> str:
        """Return the whole file as text. Raises `TraceError` naming the first line that is not UTF-8."""
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            bad = self.data[error.start : error.start + 1]
            raise TraceError(
                f"{self.path}: line {line}: byte {bad!r} is not UTF-8 text; allowed is UTF-8"
            ) from error

    def fail(self, line: int, message: str) -> NoReturn:
        """Raise a `TraceError` about one line of the file (1 for the first)."""
        raise TraceError(f"{self.path}: line {line}: {message}")


def shown(value: object) -> str:
    """Return a value of the file as an error message quotes it: one line, not too long."""
    plain = {None: "null", True: "true", False: "false"}.get(value) if _is_constant(value) else None
    text = plain or repr(str(value) if isinstance(value, Decimal) else value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _is_constant(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _decompressed(path: Path, stored: bytes) -> bytes:
    import pyarrow as pa

    try:
        if stored.startswith(_GZIP_MAGIC):
            return gzip.decompress(stored)
        if stored.startswith(_ZSTD_MAGIC):
            return pa.CompressedInputStream(pa.BufferReader(stored), "zstd").read()
    except (OSError, EOFError, zlib.error) as error:
        kind = "gzip" if stored.startswith(_GZIP_MAGIC) else "zstd"
        raise TraceError(
            f"{path}: damaged {kind} file: {error}; allowed is a whole one, or the file uncompressed"
        ) from error
    return stored
