"""What asking for durations costs: a step, and a run of decode steps.

A run is taken as the engine takes it: one subtraction per page of 1,024 contexts, and each page is priced
once for all replicas. Bars: 3 us for a decode step, 20 us + 20 ns per step for a run of priced pages.

python -m benchmarks.latency_cost
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from simserve.core import Chunk, Request
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.hardware import load_gpu
from simserve.latency import PAGE, TableLatency, compile_step_latency
from simserve.model import Parallelism, load_model
from simserve.sim.step_times import DecodeTable

CASES = (
    ("llama-3.1-8b", "h100_sxm", Parallelism()),
    ("llama-3.1-8b", "l40s", Parallelism()),
    ("deepseek-v3", "h200_sxm", Parallelism(tp=8)),
)
SEQUENCES, CONTEXT = 64, 1500
STEP_BAR_US, RUN_BAR_US, RUN_BAR_NS_PER_STEP = 3.0, 20.0, 20.0


class Row(NamedTuple):
    """One line of the result."""

    what: str
    us: float
    bar_us: float | None = None


def best_us(call: Callable[[], object], times: int) -> float:
    """Return microseconds of one of `times` calls, the best of five rounds."""
    rounds = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(times):
            call()
        rounds.append((time.perf_counter() - begin) / times)
    return min(rounds) * 1e6


def steps(latency: TableLatency) -> list[Row]:
    """Return what steps cost whose pages and chunks were priced before."""
    request, total = Request(0, 0, 512, 1), SEQUENCES * CONTEXT
    fresh, cached = [Chunk(request, 512, 0, True)], [Chunk(request, 512, 1024, True)]
    return [
        Row("decode step", best_us(lambda: latency.step_ns(SEQUENCES, total, ()), 5000), STEP_BAR_US),
        Row("step with a fresh chunk", best_us(lambda: latency.step_ns(SEQUENCES, total, fresh), 5000)),
        Row("step with a cached chunk", best_us(lambda: latency.step_ns(SEQUENCES, total, cached), 5000)),
    ]


def runs(latency: TableLatency) -> list[Row]:
    """Return what runs of decode steps cost, and what pricing a page does."""
    table = DecodeTable(latency)
    rows = []
    for length in (1, 100, 1000, 10_000):
        run_ns(table, length)  # prices the pages
        us = best_us(lambda k=length: run_ns(table, k), 200)
        rows.append(Row(f"run of {length:,} steps", us, RUN_BAR_US + length * RUN_BAR_NS_PER_STEP / 1000))
    number = count(100)
    rows.append(
        Row(f"pricing {PAGE:,} steps", best_us(lambda: latency.decode_page(SEQUENCES, next(number)), 10))
    )
    return rows


def run_ns(table: DecodeTable, steps: int) -> int:
    """Return the duration of a run of decode steps from CONTEXT on."""
    total, at, end = 0, CONTEXT, CONTEXT + steps
    while at < end:
        number, offset = divmod(at, PAGE)
        last = min(PAGE, offset + end - at)
        cumulative_ns = table.page(SEQUENCES, number).cumulative_ns
        total += cumulative_ns[last] - cumulative_ns[offset]
        at += last - offset
    return total


def main() -> int:
    """Print one line per cost; return 1 if a bar is missed."""
    missed = 0
    for model, gpu, parallel in CASES:
        begin = time.perf_counter()
        latency = compile_step_latency(load_model(model), load_gpu(gpu), parallel, overhead=VLLM)
        print(f"{model} on {parallel.gpus} {gpu}, compiled in {time.perf_counter() - begin:.2f} s")
        for row in (*steps(latency), *runs(latency)):
            bar = "" if row.bar_us is None else f"   bar {row.bar_us:,.0f} us"
            late = row.bar_us is not None and row.us > row.bar_us
            missed += late
            print(f"  {row.what:26}{row.us:9.2f} us{bar}{'   MISSED' if late else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
