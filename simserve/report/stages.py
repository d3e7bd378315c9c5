"""Pictures of a prefill/decode split: where the first token waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from simserve.report.format import latency
from simserve.report.page import Figure
from simserve.report.stored import floats, short
from simserve.report.where import GROUPS
from simserve.units import NS_PER_MS

STAGES = (
    ("prefill queue", "prefill_queue", "$queue"),
    ("prefill", "prefill", "$prefill"),
    ("transfer", "transfer", "$other"),
    ("decode queue", "decode_queue", "$requeue"),
    ("first decode step", "first_step", "$decode"),
)
"""Words, name in the stored columns, colour."""


def stage_chart(requests: pa.Table) -> Figure:
    """Return one bar per group of split requests: the stages of their mean time to first token."""
    columns = {name: floats(requests, f"{name}_ns") / NS_PER_MS for _, name, _ in STAGES}
    total = np.sum(list(columns.values()), axis=0)
    order = np.argsort(total)[: np.count_nonzero(~np.isnan(total))]
    groups = [
        (label, order[int(low * order.size) : max(int(np.ceil(high * order.size)), 1)])
        for label, low, high in GROUPS
    ]
    groups = [(label, members) for label, members in groups[::-1] if members.size]
    labels = [f"{label}<br>mean {latency(float(total[members].mean()))}" for label, members in groups]
    return {
        "data": [_bars(words, colour, columns[name], groups, labels) for words, name, colour in STAGES]
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
