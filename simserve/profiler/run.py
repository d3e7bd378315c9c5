"""Measure a plan within a time budget, one case at a time, every outcome on the disk before the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simserve.errors import ProfileError
from simserve.profiler.case import Case, Op
from simserve.profiler.device import CannotTime, Device, NotEnoughMemory, need_torch
from simserve.profiler.journal import NAME, Journal, write_tables
from simserve.profiler.machine_file import write_machine_file
from simserve.profiler.ops.collective import OverRanks
from simserve.profiler.tensors import poison_for
from simserve.profiler.timing import Timing, measure

MOST_CASE_S = 2.0
LEAST_CASE_S = 0.05
SHARE = 1.5
"""Time that a case may take, over an even part of what is left: many are known well enough sooner."""
TABLES_EVERY_S = 60.0
COMPILE_S = {"flex_attention": 30.0}
"""Time that must be left to begin with a kernel that may have to be compiled first."""
FAILURES = 3
"""Times that a library may fail (one after another, without having worked) before it is given up."""

Progress = Callable[[int, int, float, str], None]
"""Called with cases done, cases planned, seconds left and the case at hand."""


@dataclass
class Outcome:
    """What a run did."""

    folder: Path
    planned: int
    timed: int = 0
    not_timed: int = 0
    resumed: int = 0
    """Cases that an earlier run had done."""
    rows: dict[str, int] | None = None
    """Rows of each table, those of earlier runs included."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Backends that failed again and again, and how: their other cases were passed over."""
    passed_over: int = 0

    @property
    def left(self) -> int:
        """Cases that the budget did not reach."""
        return self.planned - self.resumed - self.timed - self.not_timed - self.passed_over


@dataclass(frozen=True)
class Place:
    """What is measured, and where its tables go: `<out>/<gpu>`."""

    gpu: str
    device: Device
    dtypes: tuple[str, ...]
    out: Path


def run_plan(
    cases: Sequence[Case],
    ops: dict[str, Op | OverRanks],
    place: Place,
    budget_s: float,
    resume: bool,
    progress: Progress | None = None,
) -> Outcome:
    """Measure `cases` in order until done or out of time; write `<out>/<gpu>/<op>.parquet`.

    Raises `ProfileError` if the folder holds measurements and `resume` is false, or tables without journal.
    """
    begin = time.monotonic()
    device, gpu, folder = place.device, place.gpu, place.out / place.gpu
    _check_folder(folder, resume)
    with Journal(folder / NAME) as journal:
        write_machine_file(folder, gpu, device, place.dtypes)
        session = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **device.facts()}
        journal.begin(session)
        outcome = Outcome(folder, len(cases), resumed=sum(case.id in journal.done for case in cases))
        todo = [case for case in cases if case.id not in journal.done]
        try:
            _measure_all(todo, ops, device, journal, begin + budget_s, outcome, gpu, progress)
        finally:
            for op in ops.values():
                if isinstance(op, OverRanks):
                    op.ranks.close()
            journal.read_again()
            outcome.rows = write_tables(folder, gpu, journal.rows, journal.sessions)
    return outcome


def _check_folder(folder: Path, resume: bool) -> None:
    has_journal = (folder / NAME).is_file() and (folder / NAME).stat().st_size > 0
    if has_journal and not resume:
        raise ProfileError(f"{folder}: holds measurements already; say --resume, or give another --out")
    if not has_journal and any(folder.glob("*.parquet")):
        raise ProfileError(f"{folder}: holds tables that no profile run has made; give another --out")


def _measure_all(
    todo: Sequence[Case],
    ops: dict[str, Op | OverRanks],
    device: Device,
    journal: Journal,
    deadline: float,
    outcome: Outcome,
    gpu: str,
    progress: Progress | None,
) -> None:
    written = time.monotonic()
    longest_s: dict[str, float] = {}
    trust = _Trust()
    for number, case in enumerate(todo):
        if case.backend in outcome.given_up:
            outcome.passed_over += 1
            continue
        left_s = deadline - time.monotonic()
        share_s = max(LEAST_CASE_S, min(MOST_CASE_S, SHARE * left_s / (len(todo) - number)))
        if left_s < COMPILE_S.get(case.backend, 0.0):
            continue
        if left_s < min(longest_s.get(case.op, share_s), 2 * MOST_CASE_S):
            break
        if progress:
            progress(outcome.resumed + number, outcome.planned, left_s, describe(case))
        begin = time.monotonic()
        row = measure_case(case, ops[case.op], device, min(share_s, left_s))
        journal.add(row)
        _release(device)
        outcome.timed += row["status"] == "ok"
        outcome.not_timed += row["status"] != "ok"
        longest_s[case.op] = max(longest_s.get(case.op, 0.0), time.monotonic() - begin)
        if why := trust.lost(case.backend, row):
            outcome.given_up[case.backend] = why
        if "CUDA error" in row.get("why", ""):
            raise ProfileError(
                f"{describe(case)}: {row['why']}; the GPU must be opened anew, go on with --resume"
            )
        if time.monotonic() - written > TABLES_EVERY_S:
            write_tables(journal.path.parent, gpu, journal.rows, journal.sessions)
            written = time.monotonic()


class _Trust:
    """Which libraries fail whatever they are asked: built for another GPU, or of another version."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}

    def lost(self, backend: str, row: dict[str, Any]) -> str:
        """Return how a backend failed, if it has failed too often to go on; torch itself always goes on."""
        if row["status"] == "ok":
            self._failures[backend] = -(10**9)
        elif row["status"] == "failed" and backend != "torch":
            self._failures[backend] = self._failures.get(backend, 0) + 1
        return row["why"] if self._failures.get(backend, 0) >= FAILURES else ""


def measure_case(case: Case, op: Op | OverRanks, device: Device, most_s: float) -> dict[str, Any]:
    """Check and time one case; return its line for the journal, which says why if there is no time."""
    begin = {
        "case": case.id, "op": case.op, "key": dict(case.key), "extra": dict(case.extra),
        "backend": case.backend, "source": "simserve",
    }  # fmt: skip
    torch = need_torch()
    try:
        torch.manual_seed(0)
        if isinstance(op, OverRanks):
            return {**begin, **_on_ranks(op, case, device, most_s)}
        kernel = op.build(case, device)
        poison_for(kernel.call(0))
        error = kernel.error()
        if not error <= kernel.tolerance:
            why = f"error {error:.3g} against float64, allowed: {kernel.tolerance:g}"
            return {**begin, "status": "wrong", "why": why}
        timing = measure(kernel.call, kernel.sets, device, most_s, kernel.capturable, kernel.rows)
    except (NotEnoughMemory, MemoryError, torch.OutOfMemoryError) as caught:
        return {**begin, "status": "oom", "why": _one_line(caught)}
    except (CannotTime, NotImplementedError) as caught:  # the latter is torch's, of a dtype on a device
        return {**begin, "status": "unsupported", "why": _one_line(caught)}
    except ProfileError:
        raise
    except Exception as caught:  # whatever a library raises: it is noted, and the others are measured
        oom = "can't allocate memory" in str(caught) or "out of memory" in str(caught)
        return {**begin, "status": "oom" if oom else "failed", "why": _one_line(caught)}
    row = {**begin, "status": "ok", "kernel": kernel.name, "backend_version": kernel.version}
    return {**row, **_columns(timing), "error": error}


def _on_ranks(op: OverRanks, case: Case, device: Device, most_s: float) -> dict[str, Any]:
    timing, error, name, version = op.time_on_ranks(case, device, most_s)
    if not error <= op.tolerance:
        return {"status": "wrong", "why": f"error {error:.3g}, allowed: {op.tolerance:g}"}
    return {"status": "ok", "kernel": name, "backend_version": version, **_columns(timing), "error": error}


def _columns(timing: Timing) -> dict[str, Any]:
    columns = asdict(timing)
    return {"latency_us": columns.pop("median_us"), **columns}


def _one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return (words if isinstance(error, CannotTime) else f"{type(error).__name__}: {words}")[:300]


def _release(device: Device) -> None:
    """Give freed memory back, so that the next case finds what is really free."""
    if device.is_cuda:
        need_torch().cuda.empty_cache()


def describe(case: Case) -> str:
    """Return a case in words: `gemm dtype=bf16 n=6144 k=4096 m=16`."""
    return " ".join([case.op, *(f"{name}={value}" for name, value in case.key)])
