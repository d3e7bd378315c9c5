"""Routed experts of one rank by what it has to do: picks, experts touched, picks of the busiest expert.

From the table `moe_counts`, which only `simserve profile run` makes. Rows that deal picks out evenly over a
part of the experts give the time over (experts touched, picks): the experts decide which weights are read,
picks how much is computed. Rows in which every token picks one expert say how much longer such a deal
takes; between the two, the logarithm of the time is linear in that of the busiest expert's share.
"""

from __future__ import annotations

import numpy as np

from simserve.latency.grid import INTERPOLATED, Float64, Grid
from simserve.latency.kernels.expert_rows import TABLE_DTYPES
from simserve.latency.kernels.expert_shape import Experts
from simserve.latency.kernels.machine import Machine
from simserve.latency.profile_file import ProfileTable

EVEN, ONE_HOT = "even", "one hot"
"""Patterns of the table that are read; others are there to judge by."""


class ExpertCounts:
    """Time of the routed experts of one rank and layer."""

    trust = INTERPOLATED
    """Best provenance that a prediction can have."""

    def __init__(self, machine: Machine, experts: Experts, rows: ProfileTable) -> None:
        """`rows` are those of this size of expert; `experts` says what an expert weighs."""
        self._topk = float(rows.values("topk")[0])
        even = rows.select(pattern=EVEN)
        columns = [even.numbers("touched"), even.numbers("tokens") * self._topk]

        def work_us(touched: Float64, picks: Float64) -> Float64:
            return machine.peaks.us(*experts.rank_work(touched, picks), experts.dtype)

        self._even = Grid(columns, even.numbers("latency_us"), work_us, trend=True)
        hot = rows.select(pattern=ONE_HOT)
        self._hot: Grid | None = None
        if len(hot):
            columns = [hot.numbers("touched"), hot.numbers("tokens") * self._topk]
            ratio = hot.numbers("latency_us") / self._even.at(*columns)
            self._hot = Grid(columns, ratio, lambda touched, picks: 0.0 * (touched + picks))

    def us(self, picks: Float64, touched: Float64, busiest: Float64) -> Float64:
        """Return microseconds of ranks (arrays of one shape); a rank without picks takes none."""
        some, experts = np.maximum(picks, 1.0), np.maximum(touched, 1.0)
        us = self._even.at(experts, some)
        if self._hot is not None:
            mean, most = some / experts, np.maximum(some / self._topk, 1.0)
            span = np.log(np.maximum(most / mean, 1.0 + 1e-9))
            place = np.clip(np.log(np.maximum(busiest / mean, 1.0)) / span, 0.0, 1.0)
            us = us * self._hot.at(experts, some) ** place
        return np.where(picks > 0, us, 0.0)


def expert_counts(machine: Machine, experts: Experts) -> ExpertCounts | None:
    """Return what was measured of experts of this size on one GPU, None if nothing was."""
    dtype = TABLE_DTYPES.get(experts.dtype, experts.dtype)
    inter = -(-experts.inter // experts.tp)
    rows = machine.rows("moe_counts", dtype=dtype, hidden=experts.hidden, inter=inter)
    if rows is None:
        return None
    nearest = min(rows.values("topk"), key=lambda topk: abs(topk - experts.topk))
    rows = rows.select(topk=nearest)
    if not len(rows.select(pattern=EVEN)):
        return None
    return machine.cached(("moe_counts", experts), lambda: ExpertCounts(machine, experts, rows))
