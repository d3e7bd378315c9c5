"""What a file is that no trace format recognises, and what to give instead."""

from __future__ import annotations

import csv
import json
import re

from simserve.workload.source import TraceFile, shown

PLAIN = (
    "allowed is a table with three columns, such as arrival_s,prompt_tokens,output_tokens with the row "
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
        return f"not JSON ({reason}); allowed is a JSON object a line, or a list of objects"
    if first in ([], {}):
        return "JSON without a request; a trace needs at least one"
    if not isinstance(first, dict):
        return f"JSON, but {shown(first)} is no object; allowed is a JSON object a request"
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
        return f"a file that begins with a comment, {shown(file.head)}; allowed is a header in the first line"
    if "," not in file.head:
        for separator, words in _SEPARATORS.items():
            if separator in file.head:
                return (
                    f"a table whose columns are separated by {words}; allowed are commas ({shown(file.head)})"
                )
    cells = next(csv.reader([file.head]), [])
    if any(re.fullmatch(r"[-+]?\d+(\.\d+)?", cell.strip()) for cell in cells):
        return f"a table without a header: it begins with {shown(file.head)}; {PLAIN}"
    return f"of no known trace format: it begins with {shown(file.head)}; {PLAIN}"
