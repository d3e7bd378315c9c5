"""Which measured rows of routed experts a deployment takes: those of its types, of its engine's or backend's
kernels, and of the nearest shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.latency.kernels.machine import Machine
from simserve.latency.tables.grid import Float64
from simserve.latency.tables.profiles import ProfileTable
from simserve.latency.tables.roofline import BYTES

# The routed experts of one layer on one GPU: what they compute and what they read.

SHAPE = ("hidden", "inter", "experts", "topk", "tp", "ep")
"""Columns of the table `moe` that tell shapes apart."""


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


TABLE_DTYPES = {"int4": "int4_wo", "mxfp4": "w4a16_mxfp4", "fp16": "bf16"}
"""Names of weight formats in the tables, where they differ from ours."""

KERNELS_OF: dict[str, tuple[str, ...]] = {
    "triton": ("triton", "vllm_fused_moe"),
    "deep_gemm": ("deepgemm",),
    "cutlass": ("flow_cutlass",),
    "flashinfer_cutlass": ("flashinfer_cutlass",),
    "flashinfer_trtllm": ("flashinfer_trtllm",),
    "marlin": ("marlin",),
}
"""Parts of the kernels' names in the tables, by `MoeBackend`."""

TRTLLM_ON_BLACKWELL = {"mxfp4": "w4a8_mxfp4_mxfp8"}
"""TensorRT-LLM's `get_mxfp4_quant_algo`: 8-bit activations from SM 100 on."""
TRTLLM_LOW_LATENCY = "moe_torch_flow_min_latency"
"""Kernels that TensorRT-LLM runs only where asked for; its default is CUTLASS (1.0)."""

DEEPEP_REACH = 0.5
"""Base-2 logarithm of the experts per GPU, over those measured, up to which DeepEP's rows are taken: half way
to the next measured degree (powers of two)."""


def table_dtype(machine: Machine, dtype: str) -> str:
    """Return what the tables call the format of weights (and activations) in the machine's engine."""
    name = TABLE_DTYPES.get(dtype, dtype)
    if machine.engine == "trtllm" and machine.sm_arch >= 100:
        name = TRTLLM_ON_BLACKWELL.get(dtype, name)
    return name if machine.rows("moe", dtype=name) is not None else TABLE_DTYPES.get(dtype, dtype)


def gated_rows(machine: Machine, name: str, alpha: float) -> ProfileTable | None:
    """Return the rows of experts with three matrices: shapes that a non-gated kernel ran are left out, as are
    kernels of other backends than the one asked for."""

    def read() -> ProfileTable | None:
        rows = machine.rows("moe", dtype=name, alpha=alpha)
        if rows is None:
            return None
        columns = np.stack([rows.column(key) for key in SHAPE[:4]]).astype(np.int64)
        kernels = rows.column("kernel").tolist()
        plain = np.array(["nongated" in kernel for kernel in kernels])
        shapes = {tuple(shape) for shape in columns[:, plain].T.tolist()}
        kept = np.array([tuple(shape) not in shapes for shape in columns.T.tolist()])
        if machine.moe_backend is not None:
            parts = KERNELS_OF[machine.moe_backend]
            kept &= np.array([any(part in kernel for part in parts) for kernel in kernels])
        return rows.where(kept) if kept.any() else None

    return machine.cached(("moe rows", name, alpha), read)


def deepep_rows(machine: Machine, wanted: Experts, alpha: float, phase: str) -> ProfileTable | None:
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


def shapes_of(rows: ProfileTable) -> Float64:
    """Return the distinct shapes measured, float64[shapes, SHAPE]."""
    columns = [rows.column(name) for name in SHAPE]
    return np.unique(np.stack(columns).astype(np.float64), axis=1).T


def nearest_shape(shapes: Float64, wanted: Experts) -> Experts:
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


def preferred(rows: ProfileTable, engine: str) -> ProfileTable:
    """Keep one backend: the engine's own, else SGLang's (whose kernels vLLM shares), else what there is.

    Of what our own profiler measured all stay, if none is the engine's: the fastest counts.
    """
    backends = rows.values("backend")
    if engine not in backends and "source" in rows.names and rows.values("source") == ["simserve"]:
        return rows
    rows = rows.select(backend=next(it for it in (engine, "sglang", *backends) if it in backends))
    usual = rows.column("kernel") != TRTLLM_LOW_LATENCY
    return rows.where(usual) if engine == "trtllm" and usual.any() else rows
