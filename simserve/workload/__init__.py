"""Workloads: read, write, change, generate and describe traces.

`load_trace` reads any registered format. What a reader assumed or changed stands in `trace.origin`.
"""

from simserve.workload.load import load_trace

__all__ = ["load_trace"]
