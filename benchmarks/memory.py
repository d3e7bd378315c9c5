"""Bytes of memory per request: the growth of the process' peak from a small run to a large one.

    python -m benchmarks.memory

The Azure conversation trace, repeated end to end at 32 times its rate on 32 replicas; both peaks include the
trace, so the growth is that of its columns, of the records while they fill, and of the result made from them.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import replace

from benchmarks.speed import find_trace, run_case
from simserve.core import Trace
from simserve.workload import load_trace, scale_rate_by_compression, tile

_SMALL, _LARGE = 100_000, 400_000
_REPLICAS = 32
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def repeated(trace: Trace, requests: int) -> Trace:
    """Return the first `requests` rows of `trace` repeated, arrivals `_REPLICAS` times as dense."""
    tiled = scale_rate_by_compression(tile(trace, -(-requests // len(trace))), float(_REPLICAS))
    columns = ("arrival_ns", "prompt_tokens", "output_tokens")
    return replace(tiled, **{name: getattr(tiled, name)[:requests].copy() for name in columns})


def peak_bytes(trace: Trace) -> int:
    """Simulate `trace` and return the peak memory that this process has had so far."""
    run_case(trace, _REPLICAS)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


def main() -> None:
    """Print both peaks and the bytes per request between them."""
    path = find_trace("azure_llm_2023_conv")
    if path is None:
        print("skipped: the trace azure_llm_2023_conv is not here (simserve trace fetch)")
        return
    trace = load_trace(path)
    peaks = [peak_bytes(repeated(trace, requests)) for requests in (_SMALL, _LARGE)]
    for requests, peak in zip((_SMALL, _LARGE), peaks, strict=True):
        print(f"{requests:,} requests: peak {peak / 2**20:.0f} MiB")
    print(f"{(peaks[1] - peaks[0]) / (_LARGE - _SMALL):.0f} bytes/request")


if __name__ == "__main__":
    main()
