"""Load a trace file: choose its reader by content or by name, check the options, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simserve.core import Trace
from simserve.errors import TraceError, nearest
from simserve.workload.readers.base import READERS, ReaderOptions, TraceReader
from simserve.workload.source import TraceFile, shown
from simserve.workload.unknown import what_it_is

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
