"""Routed experts, from the tables `moe` (tensor- or expert-parallel) and `moe_deepep` (DeepGEMM after
DeepEP).

The measured load "balanced" deals tokens out evenly: 16 tokens with 8 picks touch 128 experts.
Independent uniform picks touch fewer, E (1 - (1 - k/E)^tokens), and a small batch is bound by the weights
that it touches; so where no such batch was measured, "uniform" keeps the measured efficiency and swaps the
number of experts in the roofline. A shape, TP or EP degree that was not measured takes the efficiency of
the nearest one at equal tokens per expert, launches apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from simserve.errors import ScenarioError
from simserve.latency.kernels.expert_rows import (
    KERNELS_OF,
    SHAPE,
    TABLE_DTYPES,
    Experts,
    deepep_rows,
    gated_rows,
    nearest_shape,
    preferred,
    shapes_of,
    table_dtype,
)
from simserve.latency.kernels.machine import FAR_LARGER_THAN_L2_BYTES, USUAL_SHARE, Machine
from simserve.latency.tables.grid import EXTRAPOLATED, INTERPOLATED, Float64, Grid
from simserve.latency.tables.profiles import ProfileTable
from simserve.latency.tables.roofline import Cost, Weights, analytic

# Routed experts of one rank by what it has to do: picks, experts touched, picks of the busiest expert.
#
# From the table `moe_counts`, which only `simserve profile run` makes. Rows that deal picks out evenly over a
# part of the experts give the time over (experts touched, picks): the experts decide which weights are read,
# picks how much is computed. Rows in which every token picks one expert say how much longer such a deal
# takes; between the two, the logarithm of the time is linear in that of the busiest expert's share.

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


ExpertLoad = Literal["uniform", "balanced", "power_law_1.01", "power_law_1.2"]
"""How tokens choose experts: independently and uniformly; dealt out evenly; or by a measured power law."""
EXPERT_LOADS: tuple[ExpertLoad, ...] = ("uniform", "balanced", "power_law_1.01", "power_law_1.2")


class RoutedExperts:
    """Time of the routed experts of one layer by the tokens of the whole group."""

    def __init__(self, machine: Machine, experts: Experts, load: ExpertLoad, deepep_phase: str = "") -> None:
        """`deepep_phase` ("prefill" or "decode") prefers the rows measured behind DeepEP, where there are any
        of this size."""
        if load not in EXPERT_LOADS:
            raise ScenarioError(f"expert_load: unknown {load!r}; known: {', '.join(EXPERT_LOADS)}")
        self.machine = machine
        self.experts = experts
        self.load: ExpertLoad = load
        key = ("moe", experts, load, deepep_phase)
        self._found = machine.cached(key, lambda: _grid(machine, experts, load, deepep_phase))
        if self._found is None:
            self._miss()

    @property
    def weights(self) -> Weights:
        """What one GPU holds of the experts of one layer."""
        it = self.experts
        return Weights(it.experts / it.ep * 3 * it.hidden * it.inter / it.tp, it.dtype)

    def _miss(self) -> None:
        dtype, backend = self.experts.dtype, self.machine.moe_backend
        if backend is None:
            name = TABLE_DTYPES.get(dtype, dtype)
            self.machine.missing("moe", f"routed experts with {dtype} weights", "dtype", name)
            return
        rows = self.machine.rows("moe", dtype=table_dtype(self.machine, dtype))
        kernels = rows.values("kernel") if rows is not None else []
        there = [it for it, parts in KERNELS_OF.items() if any(part in k for k in kernels for part in parts)]
        raise ScenarioError(
            f"is in no table of {self.machine.gpu} with {dtype} weights",
            "moe_backend",
            backend,
            ", ".join(there) or "none",
        )

    def cost(self, tokens: Float64) -> Cost:
        """Return the cost for `tokens` of the whole group (float64[n])."""
        if self._found is None:
            work = self.experts.work(tokens, evenly=self.load == "balanced")
            return analytic(self.machine.peaks.analytic_us(*work, self.experts.dtype))
        grid, measured, measured_evenly, share, launch_us = self._found
        density = (self.experts.topk / self.experts.experts) / (measured.topk / measured.experts)
        us, tags = grid.tagged(tokens * density)
        evenly = measured_evenly and self.load != "uniform"
        if measured == self.experts and evenly == measured_evenly and share == 1.0:
            return Cost(us, tags)
        wanted_us = self._roofline_us(self.experts, tokens, evenly)
        had_us = self._roofline_us(measured, np.maximum(tokens * density, 1.0), measured_evenly, share)
        if measured == self.experts:
            # The same kernel with more or fewer weights to read, at the bandwidth that it reaches.
            us = np.maximum(grid.launch_us, us + (wanted_us - had_us) / USUAL_SHARE)
            return Cost(us, np.maximum(tags, INTERPOLATED).astype(np.uint8))
        ratio = wanted_us / had_us
        trust = INTERPOLATED if np.allclose(ratio, 1.0) else EXTRAPOLATED
        us = launch_us + np.maximum(us - launch_us, 0.0) * ratio
        return Cost(us, np.maximum(tags, trust).astype(np.uint8))

    def _roofline_us(self, experts: Experts, tokens: Float64, evenly: bool, share: float = 1.0) -> Float64:
        return self.machine.peaks.us(*experts.work(tokens, evenly, share), experts.dtype)


class _Found(NamedTuple):
    """The grid over tokens, and how it was measured."""

    grid: Grid
    experts: Experts
    evenly: bool
    share: float
    """Share of the experts touched by an even deal that the measurement can have read."""
    launch_us: float
    """What does not grow with work (`_launch_us`)."""


def _grid(machine: Machine, wanted: Experts, load: ExpertLoad, deepep_phase: str) -> _Found | None:
    evenly = load in ("uniform", "balanced")
    alpha = 0.0 if evenly else float(load.rsplit("_", 1)[1])
    behind_deepep = deepep_phase and machine.moe_backend in (None, "deep_gemm")
    rows = deepep_rows(machine, wanted, alpha, deepep_phase) if behind_deepep else None
    if rows is None:
        rows = gated_rows(machine, table_dtype(machine, wanted.dtype), alpha)
    if rows is None:
        return None
    if "uniform" in rows.values("load"):
        evenly = evenly and load != "uniform"
        rows = rows.select(load="balanced" if evenly else load)
    key = ("moe shapes", wanted.dtype, alpha, evenly, len(rows))
    shapes = machine.cached(key, lambda rows=rows: shapes_of(rows))
    measured = nearest_shape(shapes, wanted)
    equal = {name: getattr(measured, name) for name in SHAPE}
    rows = preferred(rows.select(**equal), machine.engine)
    tokens, latency_us = rows.numbers("tokens"), rows.numbers("latency_us")
    share = _readable_share(machine, measured, tokens, latency_us) if evenly else 1.0

    def work_us(tokens: Float64) -> Float64:
        return machine.peaks.us(*measured.work(tokens, evenly, share), measured.dtype)

    launch_us = _launch_us(tokens, latency_us, work_us)
    return _Found(Grid([tokens], latency_us, work_us, trend=True), measured, evenly, share, launch_us)


def _launch_us(tokens: Float64, latency_us: Float64, work_us: Callable[[Float64], Float64]) -> float:
    """Return what a row would take without work: a line through the first and the third size, over work at
    peak rates, which no kernel exceeds.

    Of the ways tried this one says best what a shape takes by the rows of another (docs/latency.md).
    """
    sizes = np.unique(tokens)[[0, min(2, len(np.unique(tokens)) - 1)]]
    (first_us, third_us), (first, third) = [latency_us[tokens == it].min() for it in sizes], work_us(sizes)
    slope = max(1.0, (third_us - first_us) / (third - first)) if third > first else 1.0
    return max(0.0, float(first_us - slope * first))


def _readable_share(machine: Machine, experts: Experts, tokens: Float64, latency_us: Float64) -> float:
    """Return 1, or less if the rows are faster than HBM can deliver the weights of an even deal.

    DeepSeek-V3's rows in SGLang imply 1.7 times the HBM bandwidth on four GPUs: its group-limited gate
    let the benchmark's tokens reach only half of the experts. What the bandwidth allows is then taken as
    read.
    """
    _, moved = experts.work(tokens, evenly=True)
    large = moved > FAR_LARGER_THAN_L2_BYTES
    if not large.any():
        return 1.0
    implied = float((moved / latency_us)[large].max()) / (machine.peaks.hbm_bytes_per_s / 1e6)
    return USUAL_SHARE / implied if implied > 1.0 else 1.0
