"""Hyper-connections (mHC of DeepSeek-V4): several residual streams, mixed before and after every block.

A small product over all streams of a token gives the weights with which they are read, written and mixed; a
Sinkhorn iteration makes the mixture doubly stochastic (DeepSeek, December 2025). Both kernels of a block are
measured as wholes (`mhc_pre`, `mhc_post`).
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.model.layers.base import Part, Rows, Shard


@dataclass(frozen=True)
class HyperConnections:
    """`streams` residual streams."""

    streams: int

    def parts(self, hidden: int) -> list[Part]:
        """Return the product that mixes, its offsets and scales, for one block (fp32, counted as 16 bit)."""
        outputs = (2 + self.streams) * self.streams
        return [Part("plain", outputs, self.streams * hidden), Part("plain", outputs + 3)]

    def rows(self, at: Shard) -> list[Rows]:
        """Return what runs before and after one block: all streams are read, and read and written again."""
        stream = at.hidden * at.width
        return [
            Rows("mHC pre", (self.streams + 1) * stream, "mhc_pre", at.hidden),
            Rows("mHC post", (2 * self.streams + 1) * stream, "mhc_post", at.hidden),
        ]
