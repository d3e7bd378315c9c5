"""What cached tokens add to a prefill: the tile rule.

A kernel cuts the new queries into tiles; each tile walks over all keys before it, cached or new. A cached
key costs a tile what a new one does, and that price is in the table of prompts without cache: a prompt of
L tokens has L / tile_rows tiles, which walk L / 2 keys on average, plus a masked diagonal. So the cached
tokens add waves * key_us * cached, where `waves` is the number of tiles that each multiprocessor works
off. Kernels that split long contexts share the work evenly; FlashAttention 2 does not: its waves are
whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import median

from simserve.latency.grid import Grid
from simserve.latency.kernels.traits import KernelTraits

DIAGONAL_KEYS = 290
"""Keys whose cost equals a tile's masked diagonal and start (measured prompts of 512-2048 tokens on RTX
4090: a prompt of 2048 takes as long as tiles that walk 1024 + 266 cached keys; 311 on RTX PRO 6000)."""


@dataclass(frozen=True)
class TileWalk:
    """Tiles of one prefill call over a grid of (batch, new tokens)."""

    grid: Grid
    traits: KernelTraits
    q_heads: int
    batch_factor: float = 1.0
    """Batch of the grid that one sequence stands for."""

    def waves(self, batch: float, new: float) -> float:
        """Return how many tiles a multiprocessor works off."""
        if self.traits.splits_contexts:
            return batch * self.q_heads * new / self.traits.tile_rows / self.traits.multiprocessors
        tiles = batch * self.q_heads * ceil(new / self.traits.tile_rows)
        return float(ceil(tiles / self.traits.multiprocessors))

    def launch_us(self) -> float:
        """Return the time of a prompt of one token."""
        return self.grid.at_one(self.batch_factor, 1.0)

    def key_us(self) -> float:
        """Return microseconds that a tile takes for one key: the median over the longest prompts measured."""
        lengths = self.grid.axes[-1]
        estimates = [
            (self.grid.at_one(self.batch_factor, length) - self.launch_us())
            / (self.waves(1, length) * (length / 2 + DIAGONAL_KEYS))
            for length in lengths[lengths >= lengths[-1] / 3].tolist()
        ]
        return max(0.0, median(estimates))
