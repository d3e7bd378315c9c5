"""Compressed attention (DeepSeek-V4) from the tables `compressed_decode` and `compressed_prefill`.

A row is a whole attention block of one rank: projections, compressor, indexer, attention and output, for one
width of the model, ratio and tp. What was not measured (other types, widths, tp) is estimated by roofline
from the same parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mixed import NO_CHUNK, ChunkBeside, DecodesBeside
from simserve.latency.tables.grid import ANALYTIC, EXTRAPOLATED, Float64, Grid
from simserve.latency.tables.profiles import ProfileTable
from simserve.latency.tables.roofline import BYTES, Cost, LinearOp, analytic
from simserve.model.layers.compressed import CompressedShape

_STAND_IN = 128
"""The ratio whose blocks stand for those with a window alone, as in aiconfigurator-core 0.12.0."""


class BlockKey(NamedTuple):
    """What tells a measured block from others, beside the layer's shape."""

    hidden: int
    """Width of the model."""
    tp: int
    dtype: str
    """Of the weights."""
    kv_dtype: str


class CompressedBlocks:
    """Attention blocks of one layer, for decoding sequences and for prompt chunks."""

    def __init__(
        self, machine: Machine, shape: CompressedShape, key: BlockKey, products: list[LinearOp]
    ) -> None:
        """`products` are all that a block multiplies with, of which a measured row is the sum."""
        self._machine, self._shape, self._key = machine, shape, key
        self._entry_bytes = shape.entry_bytes(key.kv_dtype)
        weights = [op.weights for op in products if op.weights]
        self._params = float(sum(it.params for it in weights))
        self._weight_bytes = sum(it.params * BYTES[it.dtype] for it in weights)
        self._decode = self._grid(
            "compressed_decode",
            ("batch", "kv_len"),
            lambda batch, context: self._work_us(batch, 1.0, context - 1.0),
        )
        self._prefill = self._grid(
            "compressed_prefill",
            ("batch", "prefix_len", "q_len"),
            lambda batch, cached, new: self._work_us(batch, new, cached - 1.0),
        )
        self._floor_us = 0.0 if self._decode is None else self._decode.at_one(1.0, 1.0)

    # -- decoding sequences ----------------------------------------------------------------------------

    def cost(self, sequences: int, context: Float64) -> Cost:
        """Return the cost of `sequences` sequences at each mean context (float64[n])."""
        if self._decode is None:
            return analytic(self._estimate_us(float(sequences), 1.0, context - 1.0))
        return Cost(*self._decode.tagged(float(sequences), context))

    # -- prompt chunks ---------------------------------------------------------------------------------

    def chunk_us(self, batch: int, new: int, cached: int) -> tuple[float, int]:
        """Return microseconds, and their provenance, of one of `batch` equal chunks computed together."""
        if self._prefill is None:
            return float(self._estimate_us(float(batch), float(new), float(cached))) / batch, ANALYTIC
        us, tag = self._prefill.tagged(float(batch), cached + 1.0, float(new))
        return float(us) / batch, int(tag)

    def fresh(self, batch: int, lengths: Float64) -> Cost:
        """Return what `chunk_us` says of prompts of these lengths (float64[n]) without cached tokens."""
        if self._prefill is None:
            return analytic(self._estimate_us(float(batch), lengths, 0.0) / batch)
        us, tags = self._prefill.tagged(float(batch), 1.0, lengths)
        return Cost(us / batch, tags)

    def decode_beside(self, sequences: int, context: Float64) -> DecodesBeside | None:
        """Return what decodes add to a step with chunks: their block less that of one short sequence.

        Projections run once for all tokens of a step, whose weights a chunk has read already [assumption].
        """
        if self._decode is None:
            return None
        us, tags = self._decode.tagged(float(sequences), context)
        work = Cost(np.maximum(us - self._floor_us, 0.0), np.maximum(tags, EXTRAPOLATED).astype(np.uint8))
        return DecodesBeside(work, np.zeros_like(work.us), 0.0, 0.0)

    def chunk_beside(self, batch: int, new: int, cached: int) -> ChunkBeside:
        """Return what the chunk takes alone."""
        return NO_CHUNK._replace(work_us=self.chunk_us(batch, new, cached)[0])

    # -- measurements and roofline ---------------------------------------------------------------------

    def _grid(self, op: str, axes: tuple[str, ...], roofline_us: Callable[..., Any]) -> Grid | None:
        rows = self._rows(op)
        if rows is None:
            return None

        def build() -> Grid:
            columns = [rows.numbers(name) + 1.0 * (name == "prefix_len") for name in axes]
            grid = Grid(columns, rows.numbers("latency_us"), roofline_us)
            grid.trust = 0 if self._shape.ratio else EXTRAPOLATED
            return grid

        return self._machine.cached((op, self._shape, self._key), build)

    def _rows(self, op: str) -> ProfileTable | None:
        """Return the engine's own rows of this block, or another's; None, and a note, without any."""
        shape, key, machine = self._shape, self._key, self._machine
        what = f"compressed attention of {shape.q_heads} heads, 1 in {shape.ratio or 'none'}"
        kv_dtype = key.kv_dtype.replace("fp8_ds_mla", "fp8")
        for column, value in (("dtype", key.dtype), ("kv_dtype", kv_dtype)):
            if machine.rows(op, **{column: value}) is None:
                machine.missing(op, what, column, value)
                return None
        ratio = shape.ratio or _STAND_IN
        found = machine.rows(
            op, dtype=key.dtype, kv_dtype=kv_dtype, hidden=key.hidden, tp=key.tp, ratio=ratio
        )
        if found is None:
            machine.missing(op, what)
            return None
        backends = found.values("backend")
        return found.select(backend=machine.engine if machine.engine in backends else backends[0])

    def _work_us(self, batch: Any, new: Any, cached: Any) -> Any:
        return self._machine.peaks.us(*self._work(batch, new, cached), self._key.dtype)

    def _estimate_us(self, batch: Any, new: Any, cached: Any) -> Any:
        return self._machine.peaks.analytic_us(*self._work(batch, new, cached), self._key.dtype)

    def _work(self, batch: Any, new: Any, cached: Any) -> tuple[Any, Any]:
        """Return FLOPs and bytes of a block: products, indexer and attention over what is seen."""
        shape, tokens = self._shape, batch * new
        context = cached + (new + 1.0) / 2.0
        seen = shape.attended(context)
        scored = shape.groups(context) if shape.index_topk else 0.0 * context
        flops = 2.0 * self._params * tokens + 4.0 * shape.q_heads * shape.head_dim * tokens * seen
        flops = flops + 2.0 * shape.index_heads * shape.index_dim * tokens * scored
        moved = self._weight_bytes + batch * (self._entry_bytes * seen + shape.index_bytes * scored)
        return flops, moved + 4.0 * tokens * self._key.hidden
