"""Bytes of memory per request: kept by a result, and growth of the peak from a small run to a large one.

    python -m benchmarks.memory

The Azure conversation trace, repeated end to end at 4 times its rate on 4 replicas. The peaks include the
trace and all that a run holds for each request while it lasts; timelines do not matter, as those of both runs
are so long that they are merged.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import replace

import numpy as np

from benchmarks.speed import find_trace, run_case
from simserve.core import Trace
from simserve.workload import load_trace, scale_rate_by_compression, tile

_SMALL, _LARGE = 100_000, 400_000
_REPLICAS = 4
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def repeated(trace: Trace, requests: int) -> Trace:
    """Return the first `requests` rows of `trace` repeated, arrivals `_REPLICAS` times as dense."""
    tiled = scale_rate_by_compression(tile(trace, -(-requests // len(trace))), float(_REPLICAS))
    columns = ("arrival_ns", "prompt_tokens", "output_tokens")
    return replace(tiled, **{name: getattr(tiled, name)[:requests].copy() for name in columns})


def measure(trace: Trace) -> tuple[int, float]:
    """Simulate `trace`; return this process' peak memory so far and the result's bytes per request."""
    result, _ = run_case(trace, _REPLICAS)
    columns = [value for value in vars(result).values() if isinstance(value, np.ndarray)]
    kept = sum(column.nbytes for column in columns if len(column) == len(trace)) / len(trace)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT, kept


def main() -> None:
    """Print both peaks and the bytes per request between them."""
    path = find_trace("azure_llm_2023_conv")
    if path is None:
        print("skipped: the trace azure_llm_2023_conv is not here (simserve trace fetch)")
        return
    trace = load_trace(path)
    small, _ = measure(repeated(trace, _SMALL))
    large, kept = measure(repeated(trace, _LARGE))
    print(f"peak: {small / 2**20:.0f} MiB for {_SMALL:,} requests, {large / 2**20:.0f} MiB for {_LARGE:,}")
    print(f"growth of the peak: {(large - small) / (_LARGE - _SMALL):.0f} bytes/request")
    print(f"kept by the result: {kept:.0f} bytes/request")


if __name__ == "__main__":
    main()
