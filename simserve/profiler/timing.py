"""How a kernel is timed: warm-up, rotating inputs, repeats until the median is known well enough.

On a GPU by CUDA events around several calls, small kernels inside a replayed CUDA graph, so that the launch
by Python is not measured; on a CPU call by call (there is no launch to hide), with other work in between. If
one thread computes, its CPU time counts, in which other programs do not show; else the wall clock's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from simserve.profiler.device import Device, need_torch

TARGET_ERROR = 0.02
"""Relative standard error of the median at which repeating stops."""
MIN_SAMPLES, MAX_SAMPLES = 7, 400
SAMPLE_US = 200.0
"""A sample of a shorter kernel takes several calls (on a GPU)."""
OTHER_PRODUCTS, OTHER_BYTES = 8, 2**20
"""Products between two timed calls on a CPU, and the weights of each: together more than a core's own caches
hold, and several, as in a layer, so that what all operators share (interpreter, dispatch) stays in them."""
MOST_OTHER_ROWS = 64
"""Most tokens of those products: beyond, what they leave in the caches no longer changes."""
GRAPH_BELOW_US = 200.0
"""Kernels shorter than this are replayed from a CUDA graph."""


@dataclass(frozen=True)
class Timing:
    """Distribution of one kernel's time, microseconds per call."""

    median_us: float
    n_samples: int
    std_us: float
    p10_us: float
    p90_us: float
    method: str
    """thread (CPU time of one), wall, events, graph, or slowest rank (see `rank_work`)."""


def measure(
    call: Callable[[int], Any],
    sets: int,
    device: Device,
    most_s: float = 2.0,
    capturable: bool = True,
    rows: int = 1,
) -> Timing:
    """Time `call(i)`, which runs the kernel on the i-th of `sets` copies of its inputs, for `most_s` at most.

    Not `capturable`: launches by Python are part of what is timed. `rows` are the tokens that it works on.
    """
    for index in range(min(sets, 3)):
        call(index)
    if device.is_cuda:
        return _on_cuda(call, sets, most_s, capturable)
    alone = need_torch().get_num_threads() == 1
    clock_ns = time.thread_time_ns if alone else time.perf_counter_ns
    return summary(_cpu_samples(call, sets, most_s, rows, clock_ns), "thread" if alone else "wall")


def _cpu_samples(
    call: Callable[[int], Any], sets: int, most_s: float, rows: int, clock_ns: Callable[[], int]
) -> list[float]:
    """Time single calls, each after products of other data: in a model, too, something else ran before.

    Without them a norm of one token finds its code and data in the core's own caches and is timed three times
    as fast as it runs in a model; after one product of as many bytes it takes twice as long as there.
    """
    other = _other_work(min(rows, MOST_OTHER_ROWS))
    deadline = time.perf_counter() + most_s
    samples: list[float] = []
    place = 0
    while _go_on(samples, deadline):
        other()
        begin = clock_ns()
        call(place)
        samples.append((clock_ns() - begin) / 1000)
        place = (place + 1) % sets
    return samples


@cache
def _other_work(rows: int) -> Callable[[], Any]:
    """Return products of `rows` tokens: as many as the kernel works on, which decides what they evict."""
    torch = need_torch()
    weights = [torch.ones(OTHER_BYTES // 4096, 1024) for _ in range(OTHER_PRODUCTS)]
    x = torch.ones(rows, 1024)

    def products() -> None:
        for one in weights:
            torch.nn.functional.linear(x, one)

    return products


def _on_cuda(call: Callable[[int], Any], sets: int, most_s: float, capturable: bool) -> Timing:
    torch = need_torch()
    torch.cuda.synchronize()
    once_us = event_us(torch, lambda: call(0))
    if capturable and once_us < GRAPH_BELOW_US:
        replay, calls = _captured(torch, call, sets)
        if replay is not None:
            return summary(_event_samples(torch, replay, calls, most_s), "graph")
    inner = max(1, min(64, round(SAMPLE_US / max(0.1, once_us))))
    place = iter(_cycle(sets))

    def several() -> None:
        for _ in range(inner):
            call(next(place))

    return summary(_event_samples(torch, several, inner, most_s), "events")


def _captured(torch: Any, call: Callable[[int], Any], sets: int) -> tuple[Callable[[], Any] | None, int]:
    """Return the replay of a graph that calls the kernel on every set once, and the number of its calls.

    (None, 0) if the kernel cannot be captured (one that waits for the GPU, say).
    """
    calls = max(sets, 8)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            call(0)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for index in range(calls):
                call(index % sets)
        graph.replay()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize()
        return None, 0
    return graph.replay, calls


def _event_samples(torch: Any, run: Callable[[], Any], calls: int, most_s: float) -> list[float]:
    deadline = time.perf_counter() + most_s
    samples: list[float] = []
    run()
    while _go_on(samples, deadline):
        samples.append(event_us(torch, run) / calls)
    return samples


def event_us(torch: Any, run: Callable[[], Any]) -> float:
    """Return the microseconds of a call by CUDA events, having waited for its end."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return 1000.0 * begin.elapsed_time(end)


def _cycle(sets: int):
    while True:
        yield from range(sets)


def _go_on(samples: list[float], deadline: float) -> bool:
    """Return True until the median is known to `TARGET_ERROR`, or time or samples run out."""
    if len(samples) < 3:
        return True
    if time.perf_counter() > deadline or len(samples) >= MAX_SAMPLES:
        return False
    return len(samples) < MIN_SAMPLES or median_error(np.array(samples)) > TARGET_ERROR


def median_error(samples: np.ndarray) -> float:
    """Return the relative standard error of the median, from the spread between p10 and p90.

    For normal samples the median's standard error is 1.2533 sigma / sqrt(n), and p90 - p10 is 2.563 sigma.
    """
    low, middle, high = np.quantile(samples, (0.1, 0.5, 0.9))
    return float(1.2533 * (high - low) / 2.563 / np.sqrt(len(samples)) / middle)


def summary(samples: Sequence[float], method: str) -> Timing:
    """Return the distribution of samples, microseconds per call."""
    values = np.array(samples)
    low, middle, high = (float(value) for value in np.quantile(values, (0.1, 0.5, 0.9)))
    return Timing(middle, len(values), float(values.std(ddof=1)), low, high, method)
