"""Multi-head latent attention of prompt chunks, from the table `mla_prefill`.

Keys and values are made from the latents of new and cached tokens, then attended per head. A short suffix
on a long cached prefix is cheaper absorbed, as queries of a decode; the cheaper is taken.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simserve.latency.kernels.gemm import gemm
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mixed import NO_CHUNK, ChunkBeside, TileWalk
from simserve.latency.kernels.mla import Latent, MlaDecode, latent_rows, measured_keys
from simserve.latency.kernels.prefill import CachedPrompts, on_a_prefix, provenance, without_prefix
from simserve.latency.tables.grid import ANALYTIC, EXTRAPOLATED, INTERPOLATED, Float64, Grid
from simserve.latency.tables.roofline import Cost, analytic
from simserve.model.layers.mla import LATENT_UP


class MlaPrefill:
    """Prompt chunks of one layer, expanded or absorbed."""

    def __init__(self, machine: Machine, latent: Latent, dtype: str, decode: MlaDecode) -> None:
        """`decode` is the same layer's decode kernel."""
        self.machine = machine
        self.latent = latent
        self.decode = decode
        columns = latent.heads * latent.expanded
        self.up = gemm(machine, LATENT_UP, dtype, columns, latent.shape.kv_lora)
        self._put_together = measured_keys(machine, latent, dtype)
        grid = machine.cached(("mla_prefill", latent), lambda: _prefill_grid(machine, latent))
        self._walk = None if grid is None else TileWalk(grid, machine.traits, latent.heads)
        if grid is None:
            machine.missing("mla_prefill", f"expanded MLA with {latent.heads} heads")
        self._key_us = self._walk.key_us() if self._walk else 0.0
        self._cached = _cached_prompts(machine, latent, self._core_us) if self._walk else None

    def chunk_us(self, batch: int, new: int, cached: int) -> tuple[float, int]:
        """Return microseconds, and their provenance, of one of `batch` equal chunks computed together."""
        if self.latent.shape.index_topk and cached + new > self.latent.shape.index_topk:
            absorbed_us = self.decode.absorbed_us(batch, new, cached + (new + 1) / 2)
            return absorbed_us / batch, ANALYTIC
        if new == 1 and cached:
            cost = self.decode.cost(batch, np.array([cached + 1.0]))
            return float(cost.us[0]) / batch, max(INTERPOLATED, int(cost.tags[0]))
        expanded_us, tag = self._expanded_us(batch, new, cached)
        if not cached:
            return expanded_us / batch, tag
        absorbed_us = self.decode.absorbed_us(batch, new, cached + (new + 1) / 2)
        if self._cached is None or absorbed_us < expanded_us:
            tag = max(EXTRAPOLATED, tag)
        return min(expanded_us, absorbed_us) / batch, tag

    def fresh(self, batch: int, lengths: Float64) -> Cost:
        """Return what `chunk_us` says of prompts of these lengths (float64[n]) without cached tokens."""
        tokens = batch * lengths
        expand = self._expand(tokens)
        if self._walk is None:
            core = analytic(self._estimate_us(tokens * (lengths + 1) / 2, tokens))
        else:
            core = Cost(*self._walk.grid.tagged(float(batch), lengths))
        us = (core.us + expand.us) / batch
        dense = Cost(us, np.maximum(core.tags, expand.tags).astype(np.uint8))
        top = self.latent.shape.index_topk
        if not top or lengths[-1] <= top:
            return dense
        longer = lengths[lengths > top]
        sparse_us = self.decode.absorbed_many_us(batch, longer, (longer + 1) / 2) / batch
        us = np.concatenate([dense.us[lengths <= top], sparse_us])
        return Cost(us, np.where(lengths > top, ANALYTIC, dense.tags).astype(np.uint8))

    def decode_beside(self, sequences: int, context: Float64) -> None:
        """Return None: engines run decoding sequences in a call of their own."""
        return

    def chunk_beside(self, batch: int, new: int, cached: int) -> ChunkBeside:
        """Return what the chunk takes alone."""
        return NO_CHUNK._replace(work_us=self.chunk_us(batch, new, cached)[0])

    def _expanded_us(self, batch: int, new: int, cached: int) -> tuple[float, int]:
        tokens = np.array([float(batch * (new + cached))])
        expand = self._expand(tokens)
        if self._walk is None:
            pairs = batch * (new * cached + new * (new + 1) / 2)
            return float(expand.us[0]) + self._estimate_us(pairs, float(tokens[0])), ANALYTIC
        us, tag = self._core_us(batch, new, cached), provenance(self._walk, batch, new)
        if cached and self._cached:
            us, tag = self._cached.correct(us, batch, new, cached)
        return float(expand.us[0]) + us, max(tag, int(expand.tags[0]))

    def _expand(self, tokens: Float64) -> Cost:
        """Return the cost of making keys and values of so many latents."""
        made = self.up.cost(tokens)
        if self._put_together is None:
            return made
        keys = self._put_together.cost(tokens)
        return Cost(made.us + keys.us, np.maximum(made.tags, keys.tags).astype(np.uint8))

    def _core_us(self, batch: int, new: int, cached: int) -> float:
        """Return attention alone by the tile rule."""
        assert self._walk is not None
        us = self._walk.grid.at_one(float(batch), float(new))
        return us + self._walk.waves(batch, new) * self._key_us * cached

    def _estimate_us(self, pairs, keys):
        width = self.latent.heads * (self.latent.expanded + self.latent.shape.rope)
        return self.machine.peaks.analytic_us(2.0 * width * pairs, 2.0 * width * keys, "bf16")


def _prefill_grid(machine: Machine, latent: Latent) -> Grid | None:
    """Return the grid over (batch, new tokens)."""
    rows, trust = latent_rows(machine, "mla_prefill", latent)
    rows = without_prefix(rows) if rows is not None else None
    if rows is None or not len(rows):
        return None
    width = latent.expanded + latent.shape.rope

    def work_us(heads, batch, length):
        flops = heads * width * batch * length * (length + 1.0)
        return machine.peaks.us(flops, 4.0 * heads * width * batch * length, "bf16")

    columns = [rows.numbers(name) for name in ("q_heads", "batch", "q_len")]
    grid = Grid(columns, rows.numbers("latency_us"), work_us).fixed(float(latent.heads))
    grid.trust = max(grid.trust, trust)
    return grid


def _cached_prompts(
    machine: Machine, latent: Latent, ruled_us: Callable[[int, int, int], float]
) -> CachedPrompts | None:
    """Return what was measured of these heads on a cached prefix."""
    rows, _ = latent_rows(machine, "mla_prefill", latent)
    found = on_a_prefix(rows.select(q_heads=latent.heads)) if rows is not None else None
    return CachedPrompts(found, ruled_us) if found is not None else None
