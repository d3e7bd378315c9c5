"""Load a trace file: choose its reader by content or by name, check the options, read."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simserve.core import Trace
from simserve.errors import TraceError, nearest
from simserve.workload.formats.base import READERS, WRITERS, ReaderOptions, TraceReader
from simserve.workload.source import TraceFile, shown

# What a file is that no trace format recognises, and what to give instead.

PLAIN = (
    "allowed: a table with three columns, such as arrival_s,prompt_tokens,output_tokens with the row "
    "0.25,812,64 (say which is which with columns: {arrival: NAME, prompt_tokens: NAME, "
    "output_tokens: NAME}), or a format of docs/trace-formats.md"
)
_MAGIC = {
    b"PK\x03\x04": "a zip archive (or an Excel file): unpack it, or export it as CSV",
    b"\xfd7zXZ": "compressed with xz: unpack it, or compress it with gzip or zstd",
    b"BZh": "compressed with bzip2: unpack it, or compress it with gzip or zstd",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
    b"%PDF": "a PDF: export the table as CSV",
    b"ARROW1": "an Arrow file: write it as Parquet or CSV",
    b"FEA1": "a Feather file: write it as Parquet or CSV",
    b"SQLite": "an SQLite database: export the table as CSV",
}
_SEPARATORS = {"\t": "tabs", ";": "semicolons", "|": "bars"}


def what_it_is(file: TraceFile) -> str:
    """Return in words what a file is that no format claims, and what is allowed."""
    for magic, words in _MAGIC.items():
        if file.data.startswith(magic):
            return f"not a trace, but {words}"
    if b"\0" in file.data[:4096]:
        return f"binary, and not Parquet, gzip or zstd; {PLAIN}"
    if file.is_json or (
        file.head[:1] in ('"', "'") and file.head[-1:] in ('"', "'") and "," not in file.head
    ):
        return _json(file)
    return _table(file)


def _json(file: TraceFile) -> str:
    try:
        first = json.loads(file.first_row or file.head)
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        return f"not JSON ({reason}); allowed: a JSON object a line, or a list of objects"
    if first in ([], {}):
        return "JSON without a request; a trace needs at least one"
    if not isinstance(first, dict):
        return f"JSON, but {shown(first)} is no object; allowed: a JSON object a request"
    keys = ", ".join(list(first)[:12])
    return f"JSON whose fields are of no known trace format: {keys}; {PLAIN}"


def _table(file: TraceFile) -> str:
    if "Metric" in file.header and file.header & {"avg", "p99"}:
        return (
            "AIPerf's CSV, which holds statistics, not requests: give profile_export.jsonl, which AIPerf "
            "writes beside it, with a line per request"
        )
    if file.head.startswith("<"):
        return f"not a trace, but HTML or XML: it begins with {shown(file.head)}"
    if file.head.startswith(("#", "//")):
        return f"a file that begins with a comment, {shown(file.head)}; allowed: a header in the first line"
    if "," not in file.head:
        for separator, words in _SEPARATORS.items():
            if separator in file.head:
                return f"a table whose columns are separated by {words}; allowed: commas ({shown(file.head)})"
    cells = next(csv.reader([file.head]), [])
    if any(re.fullmatch(r"[-+]?\d+(\.\d+)?", cell.strip()) for cell in cells):
        return f"a table without a header: it begins with {shown(file.head)}; {PLAIN}"
    return f"of no known trace format: it begins with {shown(file.head)}; {PLAIN}"


FALLBACK = "columns"
"""Read what no format of its own claims, if the columns' names are known."""
ELSEWHERE = {
    "rate": "its files have arrivals; rate_scale in the scenario's workload changes their rate",
    "tokenizer": "its files have lengths, which are taken",
    "tokens_per_word": "its files have lengths, which are taken",
    "columns": "it has columns of its own",
}
"""Why a format may lack an option that others have."""


def load_trace(path: str | Path, format: str = "auto", *, closed_loop: bool = False, **options: Any) -> Trace:
    """Read the trace at `path` (compressed with gzip or zstd, or not).

    `format` is a registered name or "auto", which looks at the content. `options` are those of the format
    (see its `Options`). With `closed_loop` clients say when requests are sent, so a file without arrivals
    will do. What the reader assumed and changed is in the trace's `origin`.

    Raises `TraceError` with file, line and value for anything that cannot be read exactly.
    """
    file = TraceFile.open(path)
    if not file.data.strip():
        raise TraceError(f"{path}: the file is empty; a trace needs at least one request")
    by_hand = format == "auto" and "columns" in options
    name = FALLBACK if by_hand else sniff(file) if format == "auto" else format
    reader = READERS.get(name)()
    if closed_loop and "closed_loop" in reader.Options.model_fields:
        options["closed_loop"] = True
    return reader.read(file, _checked(file, name, reader, options))


def sniff(file: TraceFile) -> str:
    """Return the name of the one format that recognises `file`; raises `TraceError` otherwise."""
    claims = [name for name in READERS if name != FALLBACK and READERS.get(name)().sniff(file)]
    if not claims and READERS.get(FALLBACK)().sniff(file):
        return FALLBACK
    if len(claims) == 1:
        return claims[0]
    if claims:
        raise TraceError(f"{file.path}: could be any of {', '.join(claims)}: name the format")
    raise TraceError(f"{file.path}: unknown trace format: the file is {what_it_is(file)}")


def _checked(file: TraceFile, name: str, reader: TraceReader, options: dict[str, Any]) -> ReaderOptions:
    known = reader.Options.model_fields
    for option in options:
        if option not in known:
            why = f": {ELSEWHERE[option]}" if option in ELSEWHERE else nearest(option, known)
            allowed = ", ".join(known) or "none"
            raise TraceError(f"{file.path}: format {name} has no option {option!r}{why}; options: {allowed}")
    try:
        return reader.Options(**options)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        found = f"option {place} of format {name}: {message}, not {shown(first['input'])}"
        raise TraceError(f"{file.path}: {found if place else message}") from error


# Write a trace to a file, in any format that has a writer.


def write_trace(
    trace: Trace, path: str | Path, format: str, *, lossy: bool = False, force: bool = False
) -> list[str]:
    """Write `trace` to `path` (compressed if it ends in .gz) and return what the format could not hold.

    The same trace gives the same bytes. Raises `TraceError` if something would be lost and `lossy` is not
    set, if the file exists and `force` is not set, or if the ending is not one of the format's.
    """
    path = Path(path)
    writer = WRITERS.get(format)()
    _check_ending(path, format, writer.suffixes)
    losses = writer.losses(trace)
    if losses and not lossy:
        raise TraceError(
            f"{path}: format {format} cannot hold {'; '.join(losses)}: choose plain, or accept the loss"
        )
    if path.exists() and not force:
        raise TraceError(f"{path}: exists already: remove it, or force overwriting")
    if not path.parent.is_dir():
        raise TraceError(f"{path}: there is no folder {path.parent}")
    content = writer.encode(trace, path)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return losses


def format_of(path: str | Path) -> str:
    """Return the format that a file's ending suggests: mooncake for .jsonl, else plain."""
    return "mooncake" if ".jsonl" in Path(path).suffixes else "plain"


def _check_ending(path: Path, format: str, suffixes: tuple[str, ...]) -> None:
    stem = path.name.removesuffix(".gz")
    if not stem.endswith(suffixes):
        allowed = ", ".join(f"{suffix}[.gz]" if suffix != ".parquet" else suffix for suffix in suffixes)
        raise TraceError(f"{path}: a file of format {format} ends in {allowed}")
    if path.name.endswith(".parquet.gz"):
        raise TraceError(f"{path}: Parquet is compressed already: write .parquet")
