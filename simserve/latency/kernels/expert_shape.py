"""The routed experts of one layer on one GPU: what they compute and what they read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.latency.grid import Float64
from simserve.latency.roofline import BYTES

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
