"""Read a file, or a folder of results, of a load generator: sniffed, or in a named format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from simserve.errors import TraceError
from simserve.validation.loadtests.base import IMPORTERS, Float64, LoadTest, Requests
from simserve.validation.loadtests.json_file import JsonFile

# What no load test can show: refused with the suspicion, so that a wrong unit or clock is not compared.
#
# Limits are far outside what servers do, so that only a factor of 1000 or another clock is caught.

FASTEST_TOKEN_MS = 0.02
"""No model streams more than 50,000 tokens/s to one client ..."""
SLOWEST_TOKEN_MS = 5_000.0
"""... and nobody waits 5 s for each token."""
WALL_CLOCK_S = 1e8
"""Stamps above count from 1970; a machine's own clock would need three years to get there."""
LONGER = 3.0
"""Neither a request nor the time from the first send to the last takes this many times the whole run."""
FACTOR = 100.0
"""Two figures for the same thing that differ by more than this are in different units."""


def checked(test: LoadTest) -> LoadTest:
    """Return the load test, without statistics that cannot be (a mean of 0 or less, a negative percentile).

    Raises `TraceError` with the suspicion if its times contradict each other.
    """
    test = _without_impossible(test)
    if test.requests is not None:
        _check_requests(test, test.requests)
    _check_stated(test)
    return test


def _without_impossible(test: LoadTest) -> LoadTest:
    """Drop what no run can measure, all statistics of a quantity together, and say so in a note."""
    why: dict[str, str] = {}
    for name, value in test.stated.items():
        quantity, dot, statistic = name.partition(".")
        if value < 0:
            why.setdefault(
                quantity, f"a {statistic or 'rate'} of {value:g} in the file, which cannot be: missing"
            )
        elif value == 0 and (statistic == "mean" or not dot):
            why.setdefault(
                quantity, f"a {statistic or 'rate'} of 0 in the file, so not measured: missing, not 0"
            )
    by_reason: dict[str, list[str]] = {}
    for quantity, reason in sorted(why.items()):
        by_reason.setdefault(reason, []).append(quantity)
    notes = tuple(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    stated = {name: value for name, value in test.stated.items() if name.partition(".")[0] not in why}
    duration_s = test.duration_s
    if duration_s is not None and duration_s <= 0:
        notes, duration_s = (*notes, f"a duration of {duration_s:g} s cannot be: missing"), None
    return replace(test, stated=stated, duration_s=duration_s, notes=(*test.notes, *notes))


def _check_requests(test: LoadTest, found: Requests) -> None:
    for name, values in (("TTFT", found.ttft_ms), ("E2E", found.e2e_ms), ("a gap", found.gaps_ms)):
        if values is not None and (values < 0).any():
            row = int(np.flatnonzero(values < 0)[0])
            _refuse(test, f"{name} of request {row} is {values[row]:g} ms: negative, are clocks mixed?")
    early = found.e2e_ms < found.ttft_ms - 1e-3
    if early.any():
        row = int(np.flatnonzero(early)[0])
        _refuse(
            test,
            f"request {row} ends after {found.e2e_ms[row]:g} ms, before its first token "
            f"({found.ttft_ms[row]:g} ms): are units or clocks mixed?",
        )
    _check_pace(test, _median(tpot_ms(found)))
    _check_span(test, found)


def tpot_ms(found: Requests) -> Float64:
    """Return (E2E - TTFT) / (n - 1) of the requests that have both and two tokens."""
    several = found.output_tokens > 1
    gaps = np.maximum(found.output_tokens - 1, 1)
    values = np.where(several, (found.e2e_ms - found.ttft_ms) / gaps, np.nan)
    return values[~np.isnan(values)]


def _check_pace(test: LoadTest, pace_ms: float | None) -> None:
    if pace_ms is None or pace_ms == 0:  # an answer in one piece
        return
    if pace_ms < FASTEST_TOKEN_MS:
        _refuse(test, f"{pace_ms:g} ms per output token: are times in s read as ms (1000 times too small)?")
    if pace_ms > SLOWEST_TOKEN_MS:
        _refuse(test, f"{pace_ms:g} ms per output token: are times in ms read as s (1000 times too large)?")


def _check_span(test: LoadTest, found: Requests) -> None:
    """Compare the latencies and the send times with the length of the run that the tool states."""
    if test.duration_s is None or not len(found):
        return
    run_ms = 1e3 * test.duration_s
    longest_ms = float(np.nanmax(np.concatenate([found.e2e_ms, found.ttft_ms, [0.0]])))
    if longest_ms > LONGER * run_ms:
        _refuse(
            test,
            f"a request of {longest_ms / 1e3:g} s in a run of {test.duration_s:g} s: are latencies 1000 "
            "times too large (ms read as s), or the run's length too small?",
        )
    span_ms = 0.0 if found.start_ns is None else float(np.ptp(found.start_ns)) / 1e6
    if span_ms > LONGER * run_ms:
        _refuse(
            test,
            f"send times span {span_ms / 1e3:g} s in a run of {test.duration_s:g} s: are two clocks mixed "
            "(wall clock and monotonic), or ms taken for s?",
        )


def _check_stated(test: LoadTest) -> None:
    stated, found = test.stated, test.requests
    ttft, e2e = stated.get("ttft_ms.mean"), stated.get("e2e_ms.mean")
    _check_pace(test, stated.get("tpot_ms.mean"))
    if ttft and e2e and e2e < ttft / FACTOR:
        _refuse(
            test,
            f"mean E2E {e2e:g} ms, mean TTFT {ttft:g} ms: is one of them in another unit (s and ms differ "
            "by 1000)?",
        )
    if found is None:
        return
    for name, values in (("ttft_ms", found.ttft_ms), ("e2e_ms", found.e2e_ms)):
        own, mean = _mean(values), stated.get(f"{name}.mean")
        if own and mean and not 1 / FACTOR < own / mean < FACTOR:
            _refuse(
                test,
                f"{name}: the requests' mean is {own:g} ms, the file's own mean {mean:g} ms: are units off "
                "by 1000?",
            )


def one_clock(place: str, stamps_s: Float64) -> None:
    """Raise `TraceError` if some stamps are wall-clock times and others count from the start of a machine."""
    present = stamps_s[~np.isnan(stamps_s)]
    wall = present > WALL_CLOCK_S
    if wall.any() and not wall.all():
        raise TraceError(
            f"{place}: stamps of {present[wall][0]:.3f} s and of {present[~wall][0]:.3f} s: clocks are mixed "
            "(wall clock and monotonic, or other units)"
        )


def _mean(values: Float64) -> float | None:
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else None


def _median(values: Float64) -> float | None:
    return float(np.median(values)) if len(values) else None


def _refuse(test: LoadTest, suspicion: str) -> None:
    raise TraceError(f"{test.source}: {suspicion}")


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
