"""A trace file as it lies on disk: its bytes, its hash, and the places in it that errors must name."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from simserve.errors import TraceError, nearest

# A whole-file JSON list, `[...]` or `{"data": [...]}`: where its elements lie, one after the other.

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
LISTS = ("data",)
"""Keys under which an API answers with a list of rows."""


def list_start(text: str) -> int | None:
    """Return the position after the `[` of the list that holds a file's rows; None if there is none.

    A first line that is an object by itself, with more lines after it, is of JSON lines.
    """
    start = _skip(text, 0)
    if text.startswith("[", start):
        return start + 1
    if not text.startswith("{", start) or is_lines(text):
        return None
    try:
        return _data_start(text, start + 1)
    except (ValueError, RecursionError):
        return None


def is_lines(text: str) -> bool:
    """Return whether the first line is JSON by itself, and not the only line."""
    start = _skip(text, 0)
    end = text.find("\n", start)
    if end < 0 or not text[end:].strip():
        return False
    try:
        _DECODER.decode(text[start:end].strip())
    except (ValueError, RecursionError):
        return False
    return True


def elements(text: str, start: int, decoder: json.JSONDecoder) -> Iterator[tuple[int, int, Any]]:
    """Yield begin, end and value of each element of the list whose `[` ends at `start`.

    Raises `json.JSONDecodeError` (a `ValueError`) at what is not JSON, also after the list.
    """
    place = _skip(text, start)
    while not text.startswith("]", place):
        value, end = decoder.raw_decode(text, place)
        yield place, end, value
        place = _skip(text, end)
        if text.startswith(",", place):
            place = _skip(text, place + 1)
            if text.startswith("]", place):
                raise json.JSONDecodeError("Expecting value", text, place)
        elif not text.startswith("]", place):
            raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
    rest = text[place + 1 :]
    before = '{"data": []' if text.startswith("{", _skip(text, 0)) else "[]"
    try:
        _DECODER.decode(before + rest)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(error.msg, text, place + 1 + error.pos - len(before)) from error


def _data_start(text: str, place: int) -> int | None:
    """Return the position after the `[` of an object's list of rows; `place` is after the object's `{`."""
    while True:
        place = _skip(text, place)
        if not text.startswith('"', place):
            return None
        key, place = _DECODER.raw_decode(text, place)
        place = _skip(text, place)
        if not text.startswith(":", place):
            return None
        place = _skip(text, place + 1)
        if key in LISTS and text.startswith("[", place):
            return place + 1
        _, place = _DECODER.raw_decode(text, place)
        place = _skip(text, place)
        if not text.startswith(",", place):
            return None
        place += 1


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


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
                f"{path}: cannot be read ({error.strerror}); allowed: a readable file"
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
                f"{self.path}: line {line}: byte {bad!r} is not UTF-8 text; allowed: UTF-8"
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
            f"{path}: damaged {kind} file: {error}; allowed: a whole one, or the file uncompressed"
        ) from error
    return stored
