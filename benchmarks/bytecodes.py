"""Python bytecodes per simulated request: a cost that no other program on the machine can move.

    python -m benchmarks.bytecodes                      the Azure cases of benchmarks.speed
    python -m benchmarks.bytecodes --case conv-1 --functions 20

Counts what the interpreter executes while the first 2,000 requests of a case are simulated, SimPy included,
by function. Time spent in C (arithmetic, heaps, numpy) does not show, so this finds regressions of the hot
path and is no replacement for `benchmarks.speed`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from benchmarks import speed
from benchmarks.cost import Cost
from simserve.core import Trace

_REQUESTS = 2000


class Counting:
    """Counts executed bytecodes by (file, function) while it runs a call."""

    def __init__(self) -> None:
        self.executed: Counter[tuple[str, str]] = Counter()

    def measure(self, call: Any) -> tuple[Any, Cost]:
        """Stand where `benchmarks.cost.measure` does; the time is not measured."""
        sys.settrace(self._trace)
        try:
            return call(), Cost(1.0, 1.0)
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.executed[frame.f_code.co_filename, frame.f_code.co_name] += 1
        return self._trace


def first_rows(trace: Trace, rows: int) -> Trace:
    """Return the trace's first rows."""
    columns = {field.name: getattr(trace, field.name) for field in fields(trace)}
    cut = {name: column[:rows] for name, column in columns.items() if isinstance(column, np.ndarray)}
    return replace(trace, **cut)


def count(case: str) -> Counter[tuple[str, str]] | None:
    """Return the bytecodes of a case by function; None if its trace is not here."""
    _, _, load, options = speed.CASES[case]
    trace = load()
    if trace is None:
        return None
    counting = Counting()
    speed.measure = counting.measure
    speed.run_case(first_rows(trace, _REQUESTS), **options)
    return counting.executed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=sorted(speed.CASES))
    parser.add_argument("--functions", type=int, default=0, help="also list so many functions")
    chosen = parser.parse_args()
    for name in chosen.case or ["conv-1", "conv-4", "code-2", "conv-1-async", "code-2-async"]:
        found = count(name)
        if found is None:
            print(f"{name:14} skipped: its trace is not here (simserve trace fetch)")
            continue
        print(f"{name:14} {found.total() / _REQUESTS:8,.0f} bytecodes/request", flush=True)
        for (file, function), executed in found.most_common(chosen.functions):
            print(f"{'':14} {executed / _REQUESTS:8,.1f} {Path(file).name}:{function}")
