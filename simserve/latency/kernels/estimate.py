"""Attention without a table: the roofline at the named efficiencies, tagged analytic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.latency.costs import Cost, analytic
from simserve.latency.grid import ANALYTIC, Float64
from simserve.latency.kernels.beside import NO_CHUNK, ChunkBeside
from simserve.latency.kernels.machine import Machine


@dataclass(frozen=True)
class EstimatedAttention:
    """Decode and prefill from FLOPs per (query, key) pair and bytes per context token and query."""

    machine: Machine
    flops_per_pair: float
    bytes_per_key: float
    bytes_per_query: float
    dtype: str
    flops_per_query: float = 0.0

    def cost(self, sequences: int, context: Float64) -> Cost:
        """Return the cost of one new token for each of `sequences` sequences."""
        flops = sequences * (context * self.flops_per_pair + self.flops_per_query)
        moved = sequences * (context * self.bytes_per_key + self.bytes_per_query)
        return analytic(self.machine.peaks.analytic_us(flops, moved, self.dtype))

    def chunk_us(self, batch: int, new: int, cached: int) -> tuple[float, int]:
        """Return microseconds, and their provenance, of one of `batch` equal chunks."""
        pairs = new * cached + new * (new + 1) / 2
        flops = batch * (pairs * self.flops_per_pair + new * self.flops_per_query)
        moved = batch * ((new + cached) * self.bytes_per_key + new * self.bytes_per_query)
        return float(self.machine.peaks.analytic_us(np.float64(flops), moved, self.dtype)) / batch, ANALYTIC

    def fresh(self, batch: int, lengths: Float64) -> Cost:
        """Return what `chunk_us` says of prompts of these lengths without cached tokens."""
        pairs = lengths * (lengths + 1) / 2
        flops = batch * (pairs * self.flops_per_pair + lengths * self.flops_per_query)
        moved = batch * lengths * (self.bytes_per_key + self.bytes_per_query)
        return analytic(self.machine.peaks.analytic_us(flops, moved, self.dtype) / batch)

    def decode_beside(self, sequences: int, context: Float64) -> None:
        """Return None: decoding sequences cost the same beside prompt chunks."""
        return

    def chunk_beside(self, batch: int, new: int, cached: int) -> ChunkBeside:
        """Return what the chunk takes alone."""
        return NO_CHUNK._replace(work_us=self.chunk_us(batch, new, cached)[0])
