"""Routed experts, from the tables `moe` (tensor- or expert-parallel) and `moe_deepep` (DeepGEMM after
DeepEP).

The measured load "balanced" deals tokens out evenly: 16 tokens with 8 picks touch 128 experts.
Independent uniform picks touch fewer, E (1 - (1 - k/E)^tokens), and a small batch is bound by the weights
that it touches; so "uniform" keeps the measured efficiency and swaps the number of experts in the
roofline. A shape, TP or EP degree that was not measured takes the efficiency of the nearest one at equal
tokens per expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from simserve.errors import ScenarioError
from simserve.latency.costs import Cost, analytic
from simserve.latency.grid import EXTRAPOLATED, INTERPOLATED, Float64, Grid
from simserve.latency.kernels.machine import Machine
from simserve.latency.profile_file import ProfileTable
from simserve.latency.roofline import BYTES

ExpertLoad = Literal["uniform", "balanced", "power_law_1.01", "power_law_1.2"]
"""How tokens choose experts: independently and uniformly; dealt out evenly; or by a measured power law."""
EXPERT_LOADS: tuple[ExpertLoad, ...] = ("uniform", "balanced", "power_law_1.01", "power_law_1.2")

TABLE_DTYPES = {"int4": "int4_wo", "mxfp4": "w4a16_mxfp4", "fp16": "bf16"}
"""Names of weight formats in the tables, where they differ from ours."""

SHAPE = ("hidden", "inter", "experts", "topk", "tp", "ep")


@dataclass(frozen=True)
class Experts:
    """Routed experts of one layer, spread over `tp` times `ep` GPUs."""

    hidden: int
    inter: int
    experts: int
    topk: float
    """Experts that a token picks (a mean, where some picks cost nothing)."""
    tp: int
    ep: int
    dtype: str

    def work(self, tokens: Float64, evenly: bool) -> tuple[Float64, Float64]:
        """Return FLOPs and bytes on the busiest GPU for `tokens` of the whole group, dealt out evenly or
        at random."""
        local = max(1.0, self.experts / self.ep)
        picks = tokens * self.topk / self.ep
        if evenly:
            touched = np.minimum(local, np.maximum(1.0, picks))
        else:
            touched = local * (1.0 - (1.0 - min(1.0, self.topk / self.experts)) ** tokens)
        matrix = 3.0 * self.hidden * self.inter / self.tp
        moved = touched * matrix * BYTES[self.dtype] + picks * 2.0 * (
            2.0 * self.hidden + self.inter / self.tp
        )
        return 2.0 * matrix * picks, moved


class RoutedExperts:
    """Time of the routed experts of one layer by the tokens of the whole group."""

    def __init__(self, machine: Machine, experts: Experts, load: ExpertLoad, deepep_phase: str = "") -> None:
        """`deepep_phase` ("prefill" or "decode") prefers the rows measured behind DeepEP, where the shape
        fits."""
        if load not in EXPERT_LOADS:
            raise ScenarioError(f"expert_load: unknown {load!r}; known: {', '.join(EXPERT_LOADS)}")
        self.machine = machine
        self.experts = experts
        self.load: ExpertLoad = load
        key = ("moe", experts, load, deepep_phase)
        self._found = machine.cached(key, lambda: _grid(machine, experts, load, deepep_phase))
        if self._found is None:
            dtype = TABLE_DTYPES.get(experts.dtype, experts.dtype)
            machine.missing("moe", f"routed experts with {experts.dtype} weights", "dtype", dtype)

    def cost(self, tokens: Float64) -> Cost:
        """Return the cost for `tokens` of the whole group (float64[n])."""
        if self._found is None:
            work = self.experts.work(tokens, evenly=self.load == "balanced")
            return analytic(self.machine.peaks.analytic_us(*work, self.experts.dtype))
        grid, measured, measured_evenly = self._found
        density = (self.experts.topk / self.experts.experts) / (measured.topk / measured.experts)
        us, tags = grid.tagged(tokens * density)
        evenly = measured_evenly and self.load != "uniform"
        if measured == self.experts and evenly == measured_evenly:
            return Cost(us, tags)
        wanted_us = self._roofline_us(self.experts, tokens, evenly, grid)
        had_us = self._roofline_us(measured, np.maximum(tokens * density, 1.0), measured_evenly, grid)
        worst = INTERPOLATED if measured == self.experts else EXTRAPOLATED
        return Cost(us * wanted_us / had_us, np.maximum(tags, worst).astype(np.uint8))

    def _roofline_us(self, experts: Experts, tokens: Float64, evenly: bool, grid: Grid) -> Float64:
        return grid.launch_us + self.machine.peaks.us(*experts.work(tokens, evenly), experts.dtype)


def _grid(
    machine: Machine, wanted: Experts, load: ExpertLoad, deepep_phase: str
) -> tuple[Grid, Experts, bool] | None:
    """Return the grid over tokens, the shape that it was measured with, and whether tokens were dealt
    evenly."""
    evenly = load in ("uniform", "balanced")
    alpha = 0.0 if evenly else float(load.rsplit("_", 1)[1])
    rows = _deepep_rows(machine, wanted, alpha, deepep_phase) if deepep_phase else None
    if rows is None:
        dtype = TABLE_DTYPES.get(wanted.dtype, wanted.dtype)
        rows = machine.cached(
            ("moe rows", dtype, alpha), lambda: machine.rows("moe", dtype=dtype, alpha=alpha)
        )
    if rows is None:
        return None
    key = ("moe shapes", wanted.dtype, alpha, len(rows))
    shapes = machine.cached(key, lambda rows=rows: _shapes(rows))
    measured = _nearest_shape(shapes, wanted)
    equal = {name: getattr(measured, name) for name in SHAPE}
    rows = _preferred(rows.select(**equal))
    return (
        Grid(
            [rows.numbers("tokens")],
            rows.numbers("latency_us"),
            lambda tokens: machine.peaks.us(*measured.work(tokens, evenly), measured.dtype),
            trend=True,
        ),
        measured,
        evenly,
    )


def _deepep_rows(machine: Machine, wanted: Experts, alpha: float, phase: str) -> ProfileTable | None:
    """Return the DeepEP rows if this very shape and EP degree was measured."""
    equal = {name: getattr(wanted, name) for name in SHAPE}
    return machine.rows("moe_deepep", phase=phase, dtype=wanted.dtype, alpha=alpha, **equal)


def _shapes(rows: ProfileTable) -> Float64:
    """Return the distinct shapes measured, float64[shapes, SHAPE]."""
    columns = [rows.column(name) for name in SHAPE]
    return np.unique(np.stack(columns).astype(np.float64), axis=1).T


def _nearest_shape(shapes: Float64, wanted: Experts) -> Experts:
    """Return the measured shape nearest in work per GPU and expert; an exact one if there is."""
    hidden, inter, experts, topk, tp, ep = shapes.T
    architecture = (wanted.hidden, wanted.inter, wanted.experts, wanted.topk)
    distance = (
        0.1 * (shapes[:, :4] != architecture).any(1)
        + np.abs(np.log2(hidden / wanted.hidden))
        + np.abs(np.log2(inter / tp / (wanted.inter / wanted.tp)))
        + np.abs(np.log2(experts / ep / (wanted.experts / wanted.ep)))
        + 0.5 * np.abs(np.log2(topk / wanted.topk))
        + 0.01 * (ep != wanted.ep)
    )
    nearest = shapes[int(np.argmin(distance))].astype(int).tolist()
    return Experts(*nearest, dtype=wanted.dtype)


def _preferred(rows: ProfileTable) -> ProfileTable:
    """Keep one backend: SGLang's rows where both were measured (its kernels are those that vLLM shares)."""
    backends = rows.values("backend")
    return rows.select(backend="sglang" if "sglang" in backends else backends[0])
