"""Workloads: read, write, change, generate and describe traces.

`load_trace` reads any registered format and `synthesize` draws a trace from a `SyntheticSpec`. What a
reader assumed, and what it or a transformation changed, stands in the trace's `origin`.
"""

from simserve.workload.cache_curve import CacheCurve, cache_curve
from simserve.workload.load import load_trace, write_trace
from simserve.workload.stats import TraceStats, stats
from simserve.workload.synthetic.generate import synthesize
from simserve.workload.synthetic.spec import SyntheticSpec
from simserve.workload.transform import (
    scale_rate_by_compression,
    scale_rate_by_thinning,
    spread_quantised,
    take,
    tile,
    window,
)

__all__ = [
    "CacheCurve",
    "SyntheticSpec",
    "TraceStats",
    "cache_curve",
    "load_trace",
    "scale_rate_by_compression",
    "scale_rate_by_thinning",
    "spread_quantised",
    "stats",
    "synthesize",
    "take",
    "tile",
    "window",
    "write_trace",
]
