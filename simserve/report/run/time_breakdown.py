"""Where the time of requests went: queue, prefill, transfer, decode, and waiting after preemptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from simserve.metrics.stages import STAGES
from simserve.metrics.store import StoredRun
from simserve.report.page import Figure
from simserve.report.stored import Float64, floats, short, stamps
from simserve.report.words import latency
from simserve.units import NS_PER_MS

# Where prompt tokens came from: the prefix cache, a tier below it, or computed; as a chart and in words.

SOURCES = {"hbm": "$decode", "cpu": "$queue", "ssd": "$requeue", "remote": "$other", "computed": "$prefill"}
"""Where prompt tokens come from, fastest first, and how each is drawn."""


def prompt_sources(runs: dict[str, StoredRun]) -> Figure:
    """Return one bar per run: prompt tokens of completed requests found in HBM or a tier, and computed."""
    names = list(runs)[::-1]
    found = [tokens_by_source(runs[name].summary) for name in names]
    whole = np.array([max(sum(tokens.values()), 1) for tokens in found], dtype=np.float64)
    if not any(tokens[source] for tokens in found for source in tokens if source != "computed"):
        return {"data": [], "layout": {}}
    shares = {source: np.array([tokens.get(source, 0) for tokens in found], np.float64) for source in SOURCES}
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": _words(source),
            "y": names,
            "x": short(100 * tokens / whole),
            "customdata": [f"{int(n):,}" for n in tokens],
            "hovertemplate": "%{customdata} tokens, %{x:.3~g} %<extra>%{fullData.name}</extra>",
            "marker": {"color": SOURCES[source]},
        }
        for source, tokens in shares.items()
        if tokens.any() or source in ("hbm", "computed")
    ]
    return {
        "data": traces,
        "layout": {
            "height": 6 + 2.2 * len(names),
            "barmode": "stack",
            "bargap": 0.35,
            "xaxis": {"range": [0, 100], "ticksuffix": " %", "dtick": 25},
            "yaxis": {"automargin": True, "showgrid": False},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
            "margin": {"t": 30, "l": 10, "r": 34, "b": 30},
        },
    }


def tokens_by_source(summary: dict[str, Any]) -> dict[str, int]:
    """Return prompt tokens by source; a tier has no more than was found (preempted requests load again)."""
    counts = summary["counts"]
    cached = left = counts.get("cached_tokens", 0)
    tokens: dict[str, int] = {}
    for tier in summary.get("kv_tiers") or []:
        share = min(left, tier["hit_tokens"])
        tokens[tier["kind"]] = tokens.get(tier["kind"], 0) + share
        left -= share
    return tokens | {"hbm": left, "computed": counts["prompt_tokens"] - cached}


def source_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return words, colour and tokens of each source of one run's prompt tokens, fastest first."""
    tokens = tokens_by_source(summary)
    return [
        {"words": _words(source), "colour": colour, "tokens": tokens[source]}
        for source, colour in SOURCES.items()
        if tokens.get(source) or source == "computed"
    ]


def _words(source: str) -> str:
    return {"hbm": "found in the prefix cache", "computed": "computed"}.get(source, f"loaded from {source}")


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


# Pictures of a prefill/decode split: where the first token waits.

STAGE_COLOURS = (
    ("prefill queue", "prefill_queue", "$queue"),
    ("prefill", "prefill", "$prefill"),
    ("transfer", "transfer", "$other"),
    ("decode queue", "decode_queue", "$requeue"),
    ("first decode step", "first_step", "$decode"),
)
"""Words, name in the stored columns, colour."""


def stage_chart(requests: pa.Table) -> Figure:
    """Return one bar per group of split requests: the stages of their mean time to first token."""
    columns = {name: floats(requests, f"{name}_ns") / NS_PER_MS for _, name, _ in STAGE_COLOURS}
    total = np.sum(list(columns.values()), axis=0)
    order = np.argsort(total)[: np.count_nonzero(~np.isnan(total))]
    groups = [
        (label, order[int(low * order.size) : max(int(np.ceil(high * order.size)), 1)])
        for label, low, high in GROUPS
    ]
    groups = [(label, members) for label, members in groups[::-1] if members.size]
    labels = [f"{label}<br>mean {latency(float(total[members].mean()))}" for label, members in groups]
    return {
        "data": [_bars(words, colour, columns[name], groups, labels) for words, name, colour in STAGE_COLOURS]
        if groups
        else [],
        "layout": {
            "height": 15,
            "barmode": "stack",
            "bargap": 0.35,
            "xaxis": {"rangemode": "tozero", "ticksuffix": " ms", "tickformat": ",~r"},
            "yaxis": {"automargin": True, "showgrid": False},
            "showlegend": False,
            "margin": {"t": 8, "l": 10, "r": 34, "b": 30},
        },
    }


def _bars(
    words: str, colour: str, column: np.ndarray, groups: list[tuple[str, np.ndarray]], labels: list[str]
) -> dict[str, Any]:
    means = np.array([float(column[members].mean()) for _, members in groups])
    return {
        "type": "bar",
        "orientation": "h",
        "name": words,
        "y": labels,
        "x": short(means),
        "customdata": [latency(float(mean)) for mean in means],
        "hovertemplate": "%{customdata}<extra>" + words + "</extra>",
        "marker": {"color": colour},
    }
