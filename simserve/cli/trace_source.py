"""A trace from a trace file, or from what a load generator measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simserve.core import Trace
from simserve.errors import TraceError


def any_trace(name: str, format: str, options: dict[str, Any]) -> Trace:
    """Return the trace that `name` holds; what is no trace is read as measurements.

    Raises `TraceError`, of the trace formats if the file is of no known kind.
    """
    from simserve.validate.importers.base import IMPORTERS
    from simserve.workload import load_trace

    if format in IMPORTERS or (format == "auto" and _is_measured(name)):
        return _measured(name, format, options)
    return load_trace(Path(name), format, **options)


def measured_notes(trace: Trace) -> tuple[str, ...]:
    """Return what was assumed and changed where the reader chose among a file's words."""
    from simserve.validate.importers.base import IMPORTERS

    origin = trace.origin
    noted = (*IMPORTERS.names(), "columns")
    return (*origin.assumptions, *origin.changes) if origin.format in noted else ()


def _is_measured(name: str) -> bool:
    """Return whether a file is no trace, but measurements of a known format."""
    from simserve.validate.importers.json_file import JsonFile
    from simserve.validate.importers.read import file_of, sniff
    from simserve.workload.load import FALLBACK
    from simserve.workload.readers.base import READERS

    try:
        file = JsonFile(file_of(name)[0])
        if any(READERS.get(one)().sniff(file.trace_file) for one in READERS if one != FALLBACK):
            return False
        sniff(file)
    except TraceError:
        return False  # the trace formats say what is wrong with it
    return True


def _measured(name: str, format: str, options: dict[str, Any]) -> Trace:
    from pydantic import ValidationError

    from simserve.validate.importers.json_file import JsonFile
    from simserve.validate.importers.read import file_of, read_load_test
    from simserve.validate.load_test_trace import MeasuredOptions, trace_of

    test = read_load_test(name, format)
    try:
        checked = MeasuredOptions(**options)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{name}: option {place} of format {test.format}: {first['msg']}") from error
    return trace_of(test, JsonFile(file_of(name)[0]).trace_file, checked)
