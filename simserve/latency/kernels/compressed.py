"""Compressed attention (DeepSeek-V4) from the tables `compressed_decode` and `compressed_prefill`.

A row is a whole attention block of one rank: projections, compressor, indexer, attention and output, for one
width of the model, ratio and tp. What was not measured is estimated by roofline from the same parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mixed import NO_CHUNK, ChunkBeside, DecodesBeside
from simserve.latency.tables.grid import ANALYTIC, EXTRAPOLATED, Float64, Grid
from simserve.latency.tables.profiles import ProfileTable
from simserve.latency.tables.roofline import BYTES, Cost, LinearOp, analytic
from simserve.model.layers.compressed import CompressedShape

MEASURED_WEIGHTS = "fp8_block"
_STAND_IN = 128
"""The ratio whose blocks stand for those with a window alone, as in aiconfigurator-core 0.12.0."""
_KV_BYTES = {"bf16": 2 * 512, "fp16": 2 * 512}
_FP8_ENTRY_BYTES, _INDEX_BYTES = 584, 132


class CompressedBlocks:
    """Attention blocks of one layer, for decoding sequences and for prompt chunks."""

    def __init__(
        self, machine: Machine, shape: CompressedShape, kv_dtype: str, dtype: str, products: list[LinearOp]
    ) -> None:
        """`products` are all that a block multiplies with, of which a measured row is the sum."""
        self.products = products
        self._machine, self._shape = machine, shape
        self._entry_bytes = _KV_BYTES.get(kv_dtype, _FP8_ENTRY_BYTES)
        weights = [op.weights for op in products if op.weights]
        self._params = float(sum(it.params for it in weights))
        self._weight_bytes = sum(it.params * BYTES[it.dtype] for it in weights)
        self._dtype = dtype
        known = kv_dtype.startswith("fp8") and dtype == MEASURED_WEIGHTS
        trust = EXTRAPOLATED if shape.ratio == 0 or not known else 0
        self._decode = self._grid("compressed_decode", ("batch", "kv_len"), trust)
        self._prefill = self._grid("compressed_prefill", ("batch", "prefix_len", "q_len"), trust)
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

    def _grid(self, op: str, axes: tuple[str, ...], trust: int) -> Grid | None:
        rows = self._rows(op)
        if rows is None:
            words = f"compressed attention of {self._shape.q_heads} heads, 1 in {self._shape.ratio}"
            self._machine.missing(op, words)
            return None

        def build() -> Grid:
            columns = [rows.numbers(name).astype(np.float64) for name in axes]
            if "prefix_len" in axes:
                columns[1] = columns[1] + 1.0
            return Grid(columns, rows.numbers("latency_us"), self._roofline_us(op))

        key = (op, self._shape, rows.values("backend")[0], self._dtype)
        grid = self._machine.cached(key, build)
        grid.trust = max(grid.trust, trust)
        return grid

    def _rows(self, op: str) -> ProfileTable | None:
        shape, machine = self._shape, self._machine
        found = machine.rows(op, hidden=shape.hidden, tp=shape.tp, ratio=shape.ratio or _STAND_IN)
        if found is None:
            return None
        backends = found.values("backend")
        return found.select(backend=machine.engine if machine.engine in backends else backends[0])

    def _roofline_us(self, op: str) -> Any:
        if op == "compressed_decode":
            return lambda batch, context: self._work_us(batch, 1.0, context - 1.0)
        return lambda batch, cached, new: self._work_us(batch, new, cached - 1.0)

    def _work_us(self, batch: Any, new: Any, cached: Any) -> Any:
        flops, moved = self._work(batch, new, cached)
        return self._machine.peaks.us(flops, moved, self._dtype)

    def _estimate_us(self, batch: Any, new: Any, cached: Any) -> Any:
        return self._machine.peaks.analytic_us(*self._work(batch, new, cached), self._dtype)

    def _work(self, batch: Any, new: Any, cached: Any) -> tuple[Any, Any]:
        """Return FLOPs and bytes of a block: products, indexer and attention over what is seen."""
        shape, tokens = self._shape, batch * new
        context = cached + (new + 1.0) / 2.0
        groups = context / shape.ratio if shape.ratio else 0.0 * context
        seen = np.minimum(context, float(shape.window))
        seen = seen + (np.minimum(groups, float(shape.index_topk)) if shape.index_topk else groups)
        index = groups if shape.index_topk else 0.0 * context
        flops = 2.0 * self._params * tokens + 4.0 * shape.q_heads * shape.head_dim * tokens * seen
        flops = flops + 2.0 * shape.index_heads * shape.index_dim * tokens * index
        moved = self._weight_bytes + batch * (self._entry_bytes * seen + _INDEX_BYTES * index)
        return flops, moved + 4.0 * tokens * shape.hidden
