"""Read a file, or a folder of results, of a load generator: sniffed, or in a named format."""

from __future__ import annotations

from pathlib import Path

from simserve.errors import TraceError
from simserve.validate.importers.base import IMPORTERS
from simserve.validate.importers.json_file import JsonFile
from simserve.validate.importers.load_test import LoadTest

IN_FOLDERS = (
    "per_request_lifecycle_metrics.json",
    "profile_export.jsonl",
    "profile_export.json",
    "benchmarks.json",
    "profile_export_aiperf.json",
    "profile_export_genai_perf.json",
    "summary_lifecycle_metrics.json",
)
"""What to read of a tool's folder of results: the first that is there."""


def read_load_tests(path: Path, format: str = "auto") -> list[LoadTest]:
    """Return the load tests in a file; raises `TraceError` naming what is wrong, and where."""
    file = JsonFile(_in_folder(path))
    name = sniff(file) if format == "auto" else format
    found = IMPORTERS.get(name)().read(file)
    if not any(test.completed is None or test.completed for test in found):
        raise TraceError(f"{file.name}: no request succeeded ({sum(test.failed for test in found)} failed)")
    return found


def read_load_test(name: str, format: str = "auto") -> LoadTest:
    """Return one load test; `FILE#2` is the second of a file that holds several."""
    path, number = file_of(name)
    found = read_load_tests(path, format)
    if number is not None:
        if not 1 <= number <= len(found):
            raise TraceError(f"{name}: the file holds {len(found)} load tests, counted from 1")
        return found[number - 1]
    if len(found) > 1:
        raise TraceError(f"{path}: holds {len(found)} load tests: name one, {path}#1 to {path}#{len(found)}")
    return found[0]


def file_of(name: str) -> tuple[Path, int | None]:
    """Return the file that `name` means (in a folder: its best), and the number of `FILE#2`."""
    path, hash, number = name.rpartition("#")
    if hash and number.isdigit():
        return _in_folder(Path(path)), int(number)
    return _in_folder(Path(name)), None


def sniff(file: JsonFile) -> str:
    """Return the name of the one format that recognises the file; raises `TraceError` otherwise."""
    claims = [name for name in IMPORTERS if IMPORTERS.get(name)().sniff(file)]
    if len(claims) == 1:
        return claims[0]
    known = ", ".join(IMPORTERS)
    if claims:
        raise TraceError(f"{file.name}: could be any of {', '.join(claims)}: name the format")
    keys = ", ".join(list(file.first.data)[:6]) or "none"
    raise TraceError(f"{file.name}: no known format of measurements ({known}); its first keys: {keys}")


def _in_folder(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in IN_FOLDERS:
        if (path / name).is_file():
            return path / name
    raise TraceError(f"{path}: a folder without a result of a known tool ({', '.join(IN_FOLDERS)})")
