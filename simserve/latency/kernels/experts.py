"""Routed experts, from the tables `moe` (tensor- or expert-parallel) and `moe_deepep` (DeepGEMM after
DeepEP).

The measured load "balanced" deals tokens out evenly: 16 tokens with 8 picks touch 128 experts.
Independent uniform picks touch fewer, E (1 - (1 - k/E)^tokens), and a small batch is bound by the weights
that it touches; so where no such batch was measured, "uniform" keeps the measured efficiency and swaps the
number of experts in the roofline. A shape, TP or EP degree that was not measured takes the efficiency of
the nearest one at equal tokens per expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from simserve.errors import ScenarioError
from simserve.latency.costs import Cost, analytic
from simserve.latency.grid import EXTRAPOLATED, INTERPOLATED, Float64, Grid
from simserve.latency.kernels.cold import FAR_LARGER_THAN_L2_BYTES, USUAL_SHARE
from simserve.latency.kernels.machine import Machine
from simserve.latency.profile_file import ProfileTable
from simserve.latency.roofline import BYTES

ExpertLoad = Literal["uniform", "balanced", "power_law_1.01", "power_law_1.2"]
"""How tokens choose experts: independently and uniformly; dealt out evenly; or by a measured power law."""
EXPERT_LOADS: tuple[ExpertLoad, ...] = ("uniform", "balanced", "power_law_1.01", "power_law_1.2")

TABLE_DTYPES = {"int4": "int4_wo", "mxfp4": "w4a16_mxfp4", "fp16": "bf16"}
"""Names of weight formats in the tables, where they differ from ours."""

TRTLLM_ON_BLACKWELL = {"mxfp4": "w4a8_mxfp4_mxfp8"}
"""TensorRT-LLM's `get_mxfp4_quant_algo`: 8-bit activations from SM 100 on."""
TRTLLM_LOW_LATENCY = "moe_torch_flow_min_latency"
"""Kernels that TensorRT-LLM runs only where asked for; its default is CUTLASS (1.0)."""

DEEPEP_REACH = 0.5
"""Base-2 logarithm of the experts per GPU, over those measured, up to which DeepEP's rows are taken: half way
to the next measured degree (powers of two)."""

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

    def work(self, tokens: Float64, evenly: bool, share: float = 1.0) -> tuple[Float64, Float64]:
        """Return FLOPs and bytes on the busiest GPU for `tokens` of the whole group, dealt out evenly or
        at random; `share` of the experts that are touched then really are."""
        local = max(1.0, self.experts / self.ep)
        picks = tokens * self.topk / self.ep
        if evenly:
            touched = np.minimum(local, np.maximum(1.0, picks))
        else:
            touched = local * (1.0 - (1.0 - min(1.0, self.topk / self.experts)) ** tokens)
        touched = np.maximum(touched * share, np.minimum(touched, self.topk))
        return self.rank_work(touched, picks)

    def rank_work(self, touched: Float64, picks: Float64) -> tuple[Float64, Float64]:
        """Return FLOPs and bytes on a GPU whose experts `touched` have `picks` tokens together."""
        matrix = 3.0 * self.hidden * self.inter / self.tp
        moved = touched * matrix * BYTES[self.dtype] + picks * 2.0 * (
            2.0 * self.hidden + self.inter / self.tp
        )
        return 2.0 * matrix * picks, moved


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
            dtype = TABLE_DTYPES.get(experts.dtype, experts.dtype)
            machine.missing("moe", f"routed experts with {experts.dtype} weights", "dtype", dtype)

    def cost(self, tokens: Float64) -> Cost:
        """Return the cost for `tokens` of the whole group (float64[n])."""
        if self._found is None:
            work = self.experts.work(tokens, evenly=self.load == "balanced")
            return analytic(self.machine.peaks.analytic_us(*work, self.experts.dtype))
        grid, measured, measured_evenly, share = self._found
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
        ratio = (grid.launch_us + wanted_us) / (grid.launch_us + had_us)
        trust = INTERPOLATED if np.allclose(ratio, 1.0) else EXTRAPOLATED
        return Cost(us * ratio, np.maximum(tags, trust).astype(np.uint8))

    def _roofline_us(self, experts: Experts, tokens: Float64, evenly: bool, share: float = 1.0) -> Float64:
        return self.machine.peaks.us(*experts.work(tokens, evenly, share), experts.dtype)


class _Found(NamedTuple):
    """The grid over tokens, and how it was measured."""

    grid: Grid
    experts: Experts
    evenly: bool
    share: float
    """Share of the experts touched by an even deal that the measurement can have read."""


def _grid(machine: Machine, wanted: Experts, load: ExpertLoad, deepep_phase: str) -> _Found | None:
    evenly = load in ("uniform", "balanced")
    alpha = 0.0 if evenly else float(load.rsplit("_", 1)[1])
    rows = _deepep_rows(machine, wanted, alpha, deepep_phase) if deepep_phase else None
    if rows is None:
        rows = _gated_rows(machine, _table_dtype(machine, wanted.dtype), alpha)
    if rows is None:
        return None
    if "uniform" in rows.values("load"):
        evenly = evenly and load != "uniform"
        rows = rows.select(load="balanced" if evenly else load)
    key = ("moe shapes", wanted.dtype, alpha, evenly, len(rows))
    shapes = machine.cached(key, lambda rows=rows: _shapes(rows))
    measured = _nearest_shape(shapes, wanted)
    equal = {name: getattr(measured, name) for name in SHAPE}
    rows = _preferred(rows.select(**equal), machine.engine)
    tokens, latency_us = rows.numbers("tokens"), rows.numbers("latency_us")
    share = _readable_share(machine, measured, tokens, latency_us) if evenly else 1.0

    def work_us(tokens: Float64) -> Float64:
        return machine.peaks.us(*measured.work(tokens, evenly, share), measured.dtype)

    return _Found(Grid([tokens], latency_us, work_us, trend=True), measured, evenly, share)


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


def _table_dtype(machine: Machine, dtype: str) -> str:
    """Return what the tables call the format of weights (and activations) in the machine's engine."""
    name = TABLE_DTYPES.get(dtype, dtype)
    if machine.engine == "trtllm" and machine.sm_arch >= 100:
        name = TRTLLM_ON_BLACKWELL.get(dtype, name)
    return name if machine.rows("moe", dtype=name) is not None else TABLE_DTYPES.get(dtype, dtype)


def _gated_rows(machine: Machine, name: str, alpha: float) -> ProfileTable | None:
    """Return the rows of experts with three matrices: shapes that a non-gated kernel ran are left out."""

    def read() -> ProfileTable | None:
        rows = machine.rows("moe", dtype=name, alpha=alpha)
        if rows is None:
            return None
        columns = np.stack([rows.column(key) for key in SHAPE[:4]]).astype(np.int64)
        plain = np.array(["nongated" in kernel for kernel in rows.column("kernel").tolist()])
        shapes = {tuple(shape) for shape in columns[:, plain].T.tolist()}
        gated = np.array([tuple(shape) not in shapes for shape in columns.T.tolist()])
        return rows.where(gated)

    return machine.cached(("moe rows", name, alpha), read)


def _deepep_rows(machine: Machine, wanted: Experts, alpha: float, phase: str) -> ProfileTable | None:
    """Return the DeepEP rows of experts of this size, if about as many per GPU were measured.

    Copies of popular experts change how many there are, and with them the EP degree that holds as many per
    GPU: 288 slots on 72 GPUs are four each, as 256 on 64. Other kernels' rows of the same number of experts
    take up to three times as long.
    """
    equal = {name: getattr(wanted, name) for name in ("hidden", "inter", "topk", "tp")}
    rows = machine.rows("moe_deepep", phase=phase, dtype=wanted.dtype, alpha=alpha, **equal)
    if rows is None:
        return None
    per_gpu = rows.column("experts").astype(np.float64) / rows.column("ep").astype(np.float64)
    apart = np.abs(np.log2(per_gpu * wanted.ep / wanted.experts))
    return rows if apart.min() <= DEEPEP_REACH else None


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


def _preferred(rows: ProfileTable, engine: str) -> ProfileTable:
    """Keep one backend: the engine's own, else SGLang's (whose kernels vLLM shares), else what there is.

    Of what our own profiler measured all stay, if none is the engine's: the fastest counts.
    """
    backends = rows.values("backend")
    if engine not in backends and "source" in rows.names and rows.values("source") == ["simserve"]:
        return rows
    rows = rows.select(backend=next(it for it in (engine, "sglang", *backends) if it in backends))
    usual = rows.column("kernel") != TRTLLM_LOW_LATENCY
    return rows.where(usual) if engine == "trtllm" and usual.any() else rows
