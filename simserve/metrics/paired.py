"""Differences request by request between two runs of the same requests.

Pairing takes the workload's own spread out: what remains is what the change did to each request.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from simserve import arrow

LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")


def paired(base: pa.Table, variant: pa.Table) -> dict[str, Any]:
    """Return mean, p5, p50 and p95 of variant - base, in ms, over the requests that have both values.

    `shorter` and `longer` are the shares of those requests whose latency fell and rose. Rows are the same
    requests in the same order.
    """
    return {name: _difference(base[name], variant[name]) for name in LATENCIES}


def _difference(base: pa.ChunkedArray, variant: pa.ChunkedArray) -> dict[str, Any] | None:
    change = _floats(variant) - _floats(base)
    change = change[~np.isnan(change)]
    if not change.size:
        return None
    p5, p50, p95 = np.percentile(change, (5, 50, 95))
    return {
        "requests": int(change.size),
        "mean": float(change.mean()),
        "p5": float(p5),
        "p50": float(p50),
        "p95": float(p95),
        "shorter": float((change < 0).mean()),
        "longer": float((change > 0).mean()),
    }


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return arrow.floats(column)
