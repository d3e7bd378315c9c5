"""Where the time of requests went: queue, prefill, transfer, decode, and waiting after preemptions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from simserve.metrics.stages import STAGES
from simserve.report.format import latency
from simserve.report.page import Figure
from simserve.report.stored import Float64, floats, short, stamps
from simserve.units import NS_PER_MS

PARTS = (
    ("queue", "queue_ms", "$queue"),
    ("prefill", "prefill_ms", "$prefill"),
    ("transfer", "transfer_ms", "$other"),
    ("decode", "decode_ms", "$decode"),
    ("waiting after preemption", "requeue_ms", "$requeue"),
)

GROUPS = (
    ("all requests", 0.0, 1.0),
    ("middle fifth", 0.4, 0.6),
    ("slowest 10 %", 0.9, 1.0),
    ("slowest 1 %", 0.99, 1.0),
)


@dataclass(frozen=True)
class Parts:
    """Mean time of a group of requests by where it went, in ms."""

    label: str
    mean_ms: float
    queue_ms: float
    prefill_ms: float
    transfer_ms: float
    decode_ms: float
    requeue_ms: float


def parts(requests: pa.Table, upto: str) -> list[Parts]:
    """Return where the time of these requests went, until `e2e_ms` or `ttft_ms`, by how slow they were.

    Waiting after preemptions is stored as one sum per request: it is taken out of decode first, then prefill.
    """
    total = floats(requests, upto)
    order = np.argsort(total)[: np.count_nonzero(~np.isnan(total))]
    if order.size == 0:
        return []
    columns = _columns(requests, upto == "e2e_ms")
    rows = []
    for label, low, high in GROUPS:
        members = order[int(low * order.size) : max(int(np.ceil(high * order.size)), 1)]
        if members.size:
            means = {name: float(column[members].mean()) for name, column in columns.items()}
            rows.append(Parts(label, float(total[members].mean()), **means))
    return rows


def _columns(requests: pa.Table, whole: bool) -> dict[str, Float64]:
    """Return the parts of each request in ms, until its last token (`whole`) or its first."""
    scheduled = stamps(requests, "first_scheduled_ns")
    first, last = stamps(requests, "first_token_ns"), stamps(requests, "last_token_ns")
    shown = np.where(first >= 0, first, last)
    queue = (scheduled - stamps(requests, "arrival_ns")) / NS_PER_MS
    prefill = (shown - scheduled) / NS_PER_MS
    decode = (last - shown) / NS_PER_MS if whole else np.zeros(len(last))
    transfer = np.zeros(len(last))
    if "transfer_ns" in requests.column_names:  # a split: the decoding side shows the first token
        waits, computes, transfer, waits_again, steps = (_stage(requests, name) for name in STAGES)
        split = stamps(requests, "transfer_end_ns") >= 0
        queue = np.where(split, waits + waits_again, queue)
        prefill = np.where(split, computes, prefill)
        decode = decode + steps
    again = stamps(requests, "requeued_ns") / NS_PER_MS
    in_decode = np.minimum(again, decode) if whole else np.zeros(len(last))
    in_prefill = np.minimum(again - in_decode, prefill)
    return {
        "queue_ms": queue,
        "prefill_ms": prefill - in_prefill,
        "transfer_ms": transfer,
        "decode_ms": decode - in_decode,
        "requeue_ms": in_prefill + in_decode,
    }


def _stage(requests: pa.Table, name: str) -> Float64:
    """Return a stage of split requests in ms; 0 for requests that were not split."""
    return np.nan_to_num(floats(requests, f"{name}_ns") / NS_PER_MS)


def where_time_went(groups: list[Parts]) -> Figure:
    """One bar per group of requests, split by where their mean time went."""
    labels = [f"{group.label}<br>mean {latency(group.mean_ms)}" for group in groups][::-1]
    traces = []
    for name, field, colour in PARTS:
        means = np.array([getattr(group, field) for group in groups][::-1])
        totals = np.array([group.mean_ms for group in groups][::-1])
        if not means.any():
            continue
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": labels,
                "x": short(100 * means / np.maximum(totals, 1e-12)),
                "customdata": [latency(float(mean)) for mean in means],
                "hovertemplate": "%{customdata}, %{x:.3~g} %<extra>" + name + "</extra>",
                "marker": {"color": colour},
            }
        )
    return {
        "data": traces,
        "layout": {
            "height": 15,
            "barmode": "stack",
            "bargap": 0.35,
            "xaxis": {"range": [0, 100], "ticksuffix": " %", "dtick": 25},
            "yaxis": {"automargin": True, "showgrid": False},
            "showlegend": False,
            "margin": {"t": 8, "l": 10, "r": 34, "b": 30},
        },
    }
