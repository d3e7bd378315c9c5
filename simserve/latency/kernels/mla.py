"""Multi-head latent attention, absorbed, from the tables `mla_decode` and `mla_bmm`.

All heads share one latent, which is read once; two batched products lead into the latent space and out of it.
This is how decode runs, and the cheaper way for a short suffix on a long cached prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.latency.kernels.machine import Machine
from simserve.latency.tables.grid import ANALYTIC, EXTRAPOLATED, Float64, Grid
from simserve.latency.tables.profiles import ProfileTable
from simserve.latency.tables.roofline import BYTES, Cost, LinearOp, Weights, analytic
from simserve.model.layers.mla import LatentShape

MLA_COMPUTE_SHARE = 0.67
"""Share of peak FLOP/s in the roofline of absorbed attention (FlashMLA README, 2026-04: 660 of 989
TFLOP/s), so that 128 heads at bf16, which sit on the ridge, count as compute-bound, as they are measured
to be."""
MEASURED_LATENT = (512, 64)
"""Latent and rope size that the tables were measured with."""
LATENT_COLUMNS = ("kv_lora", "rope", "nope", "v_dim")
"""Columns by which tables of our own profiler name the sizes."""


@dataclass(frozen=True)
class Latent:
    """Shape of MLA on one GPU."""

    shape: LatentShape
    kv_dtype: str

    @property
    def heads(self) -> int:
        """Query heads of one GPU."""
        return self.shape.q_heads

    @property
    def width(self) -> int:
        """Elements of the cache per token."""
        return self.shape.kv_lora + self.shape.rope

    @property
    def expanded(self) -> int:
        """Elements of key and value of one head, expanded."""
        return self.shape.nope + self.shape.v_dim


class MlaDecode:
    """Absorbed attention of one layer: one new token for each sequence."""

    def __init__(self, machine: Machine, latent: Latent, dtype: str) -> None:
        """`dtype` is that of the weights, which decides the batched products'."""
        self.machine = machine
        self.latent = latent
        self._grid = machine.cached(("mla_decode", latent), lambda: _decode_grid(machine, latent))
        if self._grid is None:
            machine.missing("mla_decode", f"absorbed MLA with {latent.heads} heads")
        self.products = [_product(machine, stage, latent, dtype) for stage in ("pre", "post")]

    def cost(self, sequences: float, context: Float64) -> Cost:
        """Return the cost of `sequences` sequences that attend `context` tokens each (float64[n])."""
        attended = self._attended(context)
        if self._grid is None:
            core = analytic(self._estimate_us(sequences, attended, 1))
        else:
            core = Cost(*self._grid.tagged(float(self.latent.heads), float(sequences), attended))
        products = [product.cost(np.array([float(sequences)])) for product in self.products]
        us = core.us + sum(float(cost.us[0]) for cost in products) + self._indexer_us(sequences, 1, context)
        worst = max(int(cost.tags[0]) for cost in products)
        if self.latent.shape.index_topk:
            worst = ANALYTIC
        return Cost(us, np.maximum(core.tags, worst).astype(np.uint8))

    def absorbed_us(self, batch: int, new: int, context: float) -> float:
        """Return the time of `new` queries of each of `batch` sequences on `context` tokens on average.

        Queries of one sequence share its latents, as heads do: they count as more heads.
        """
        if self._grid is None:
            us = float(self._estimate_us(batch, self._attended(context), new))
        else:
            us = self._grid.at_one(
                float(self.latent.heads * new), float(batch), float(self._attended(context))
            )
        tokens = np.array([float(batch * new)])
        products = sum(float(product.cost(tokens).us[0]) for product in self.products)
        return us + products + float(self._indexer_us(batch, new, context))

    def absorbed_many_us(self, batch: int, new: Float64, context: Float64) -> Float64:
        """Return `absorbed_us` for arrays."""
        attended = self._attended(context)
        if self._grid is None:
            us = self._estimate_us(batch, attended, new)
        else:
            us = self._grid.at(self.latent.heads * new, float(batch), attended)
        tokens = batch * new
        products = sum(product.cost(tokens).us for product in self.products)
        return us + products + self._indexer_us(batch, new, context)

    def verify_cost(self, batch: int, new: int, context: Float64) -> Cost:
        """Return `absorbed_us` for `new` queries at each context (float64[n]), with its provenance."""
        us = self.absorbed_many_us(batch, np.full_like(context, new), context)
        tags = self.cost(batch, context).tags
        if self._grid is not None:
            tags = np.maximum(tags, self._grid.tagged(self.latent.heads * new, float(batch), context)[1])
        return Cost(us, tags.astype(np.uint8))

    def _attended(self, context):
        top = self.latent.shape.index_topk
        return np.minimum(context, float(top)) if top else context

    def _indexer_us(self, batch, new, context):
        """Return the estimated time to score all keys where a sparse indexer chooses among them.

        Its heads (DeepSeek-V3.2: 64 of 128) score one key at fp8 per token of the context, which the `new`
        queries of a sequence read together.
        """
        shape = self.latent.shape
        if not shape.index_topk:
            return 0.0
        keys = batch * context
        moved = float(shape.index_dim) * keys
        return self.machine.peaks.analytic_us(float(shape.index_flops) * new * keys, moved, "fp8")

    def _estimate_us(self, sequences: float, context, new):
        return self.machine.peaks.analytic_us(
            *_work(self.latent, self.latent.heads * new, sequences, context), "bf16"
        )


def _decode_grid(machine: Machine, latent: Latent) -> Grid | None:
    """Return the grid over (heads, batch, context)."""
    rows, trust = latent_rows(machine, "mla_decode", latent)
    if rows is None:
        return None

    def work_us(heads, batch, context):
        flops, moved = _work(latent, heads, batch, context)
        return machine.peaks.us(flops / MLA_COMPUTE_SHARE, moved, "bf16")

    columns = [rows.numbers(name) for name in ("q_heads", "batch", "kv_len")]
    grid = Grid(columns, rows.numbers("latency_us"), work_us)
    grid.trust = trust
    return grid


def latent_rows(machine: Machine, op: str, latent: Latent):
    """Return the rows of this KV dtype and how far they can be trusted (None, 0 without a table)."""
    table = machine.profiles.table(machine.gpu, op)
    if table is None:
        return None, ANALYTIC
    shape = (latent.shape.kv_lora, latent.shape.rope)
    trust = 0 if shape == MEASURED_LATENT else EXTRAPOLATED
    own = of_latent(table, latent)
    if own is not None:
        table, trust = own, 0
    measured = {"fp16": "bf16", "fp8_ds_mla": "fp8"}.get(latent.kv_dtype, latent.kv_dtype)
    rows = table.select(kv_dtype=measured)
    if not len(rows):
        machine.missing(op, f"MLA with {latent.kv_dtype} KV cache", "kv_dtype", latent.kv_dtype)
        rows, trust = table.select(kv_dtype="bf16"), ANALYTIC
    return rows, trust


def of_latent(table: ProfileTable, latent: Latent) -> ProfileTable | None:
    """Return the rows of this latent's sizes, None if the table does not name sizes, or lacks these."""
    if not all(name in table.names for name in LATENT_COLUMNS):
        return None
    it = latent.shape
    sizes = (it.kv_lora, it.rope, it.nope, it.v_dim)
    rows = table.select(**dict(zip(LATENT_COLUMNS, sizes, strict=True)))
    return rows if len(rows) else None


def _work(latent: Latent, heads, batch, context):
    """Return FLOPs and bytes of absorbed attention."""
    pairs = batch * context
    moved = pairs * (latent.width * BYTES[latent.kv_dtype]) + batch * heads * 2.0 * latent.width
    return 2.0 * heads * (latent.width + latent.shape.kv_lora) * pairs, moved


def measured_keys(machine: Machine, latent: Latent, dtype: str) -> LinearOp | None:
    """Return what puts the keys of expanded prompts together, by their tokens and those cached.

    Only `simserve profile run` measures it (`mla_bmm`, stage "keys"); None where nothing was measured.
    """
    rows = _stage_rows(machine, "keys", latent, _product_dtype(dtype))
    if rows is None:
        return None
    width = latent.shape.nope + latent.shape.rope

    def work_us(heads, tokens):
        return machine.peaks.us(
            0.0, tokens * (latent.width + 2 * heads * width) * BYTES[latent.kv_dtype], "bf16"
        )

    columns = [rows.numbers("q_heads"), rows.numbers("tokens")]
    grid = machine.cached(
        ("mla keys", dtype, latent), lambda: Grid(columns, rows.numbers("latency_us"), work_us)
    )
    return LinearOp("latent keys", lambda tokens: Cost(*grid.tagged(float(latent.heads), tokens)))


def _product_dtype(dtype: str) -> str:
    return "fp8" if dtype.startswith("fp8") else ("fp32" if dtype == "fp32" else "bf16")


def _stage_rows(machine: Machine, stage: str, latent: Latent, wanted: str) -> ProfileTable | None:
    rows = machine.rows("mla_bmm", stage=stage, dtype=wanted) or machine.rows(
        "mla_bmm", stage=stage, dtype="bf16"
    )
    if rows is not None and LATENT_COLUMNS[0] in rows.names:
        rows = of_latent(rows, latent)
    return rows


def _product(machine: Machine, stage: str, latent: Latent, dtype: str) -> LinearOp:
    """Return the batched product into ("pre") or out of ("post") the latent space, by tokens."""
    wanted = _product_dtype(dtype)
    shape = latent.shape
    inner = shape.nope if stage == "pre" else shape.v_dim
    rows = _stage_rows(machine, stage, latent, wanted)
    weights = Weights(latent.heads * inner * shape.kv_lora, wanted)

    def work_us(heads, tokens):
        flops = 2.0 * heads * inner * shape.kv_lora * tokens
        moved = heads * (inner * shape.kv_lora + tokens * (inner + shape.kv_lora)) * 2.0
        return machine.peaks.us(flops, moved, wanted)

    if rows is None:
        machine.missing("mla_bmm", "the batched products of absorbed MLA")
        return LinearOp(
            f"latent {stage}", lambda tokens: analytic(3.0 + work_us(latent.heads, tokens)), weights=weights
        )
    grid = machine.cached(
        ("mla_bmm", stage, wanted, shape),
        lambda: Grid([rows.numbers("q_heads"), rows.numbers("tokens")], rows.numbers("latency_us"), work_us),
    )
    return LinearOp(
        f"latent {stage}", lambda tokens: Cost(*grid.tagged(float(latent.heads), tokens)), weights=weights
    )
