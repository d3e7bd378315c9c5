"""What may be done to one batch: spread picks anew over existing copies, or cap what an expert takes.

Spreading finds, per layer, shares of each expert's picks over its copies that make the busiest rank as light
as possible, as LPLB (DeepSeek, November 2025) solves with a linear programme. Here by water-filling: expert
after expert is poured over the ranks that hold it until their levels meet. That descends to the least sum of
squared loads, whose largest is the smallest possible too.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from simserve.experts.picks import Float64
from simserve.experts.placement import Placement

_SWEEPS = 24


def water_filled(placement: Placement, load: Float64) -> Float64:
    """Return picks per rank, float64[samples, layers, ranks], of picks per expert [samples, layers, experts].

    Experts with one copy (or all of them on one rank) stay; the others are spread over their ranks.
    """
    samples, layers, _ = load.shape
    result = np.empty((samples, layers, placement.ranks))
    for layer in range(layers):
        on_ranks = placement.on_ranks[layer] > 0
        spread = np.flatnonzero(on_ranks.sum(axis=1) > 1)
        fixed = np.setdiff1d(np.arange(placement.experts), spread)
        level = load[:, layer, fixed] @ on_ranks[fixed].astype(np.float64)
        result[:, layer] = _poured(
            level, load[:, layer, spread], [np.flatnonzero(on_ranks[e]) for e in spread]
        )
    return result


def _poured(level: Float64, amounts: Float64, homes: list[np.ndarray]) -> Float64:
    """Pour each amount (float64[samples, n]) over its homes, `_SWEEPS` times over."""
    parts = [amounts[:, [number]] / len(home) * np.ones(len(home)) for number, home in enumerate(homes)]
    for part, home in zip(parts, homes, strict=True):
        level[:, home] += part
    for _ in range(_SWEEPS if len(homes) > 1 else 1):
        moved = 0.0
        for number, home in enumerate(homes):
            without = level[:, home] - parts[number]
            part = _fill(without, amounts[:, number])
            moved = max(moved, float(np.abs(part - parts[number]).max(initial=0.0)))
            level[:, home] = without + part
            parts[number] = part
        if moved < 1e-6 * max(1.0, float(amounts.max(initial=0.0))):
            break
    return level


def _fill(level: Float64, amount: Float64) -> Float64:
    """Return how water of `amount` (float64[samples]) lies on ground `level` (float64[samples, homes])."""
    ground = np.sort(level, axis=1)
    homes = ground.shape[1]
    counts = np.arange(1, homes + 1)
    heights = (amount[:, None] + np.cumsum(ground, axis=1)) / counts
    wet = (heights > ground).sum(axis=1).clip(1)
    height = heights[np.arange(len(level)), wet - 1]
    return np.maximum(height[:, None] - level, 0.0)


def capped(load: Float64, factor: float, reroute: bool) -> Float64:
    """Return picks per expert when each takes at most ceil(factor x the mean); float64[..., experts].

    What is above is dropped, or (with `reroute`) goes to experts with room in proportion to it.
    """
    mean = load.mean(axis=-1, keepdims=True)
    cap = np.ceil(factor * mean - 1e-9)
    kept = np.minimum(load, cap)
    if not reroute:
        return kept
    over = (load - kept).sum(axis=-1, keepdims=True)
    room = cap - kept
    whole = room.sum(axis=-1, keepdims=True)
    return kept + room * np.divide(np.minimum(over, whole), whole, out=np.zeros_like(whole), where=whole > 0)


def capacity(factor: float, tokens: int, topk: float, experts: int) -> int:
    """Return the picks that an expert may take of a step of `tokens` tokens."""
    return ceil(factor * tokens * topk / experts)
