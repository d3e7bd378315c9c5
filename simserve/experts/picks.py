"""From weights of experts to picks of tokens: the chance that a token picks each, and counts of a step.

A router that samples (or ranks perturbed scores) picks k different experts. With weights w this is the race
of exponential clocks with rates w: the k first to ring are picked. At the time t at which k are expected to
have rung, expert e has with probability 1 - exp(-w_e t). Group-limited routing is not modelled.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simserve.errors import ScenarioError

Float64 = NDArray[np.float64]
_HALVINGS = 60
_NORMAL_FROM = 2048
"""Tokens from which counts are drawn from the normal distribution that the binomial has become."""


def pick_shares(weights: Float64, topk: float) -> Float64:
    """Return the probability that a token picks each expert, float64[layers, experts]; rows sum to `topk`.

    `weights` (float64[layers, experts], none negative) are relative chances of the first pick.
    """
    layers, experts = weights.shape
    if topk >= experts:
        return np.ones((layers, experts))
    if (np.count_nonzero(weights, axis=1) < topk).any():
        raise ScenarioError(f"expert weights: a layer has fewer than {topk:g} experts above zero")
    scaled = weights / weights.sum(axis=1, keepdims=True)
    low, high = np.zeros((layers, 1)), np.full((layers, 1), 1.0)
    while (short := (-np.expm1(-scaled * high)).sum(axis=1, keepdims=True) < topk).any():
        high = np.where(short, high * 2, high)
        if high.max() > 1e12:
            raise ScenarioError(f"expert weights: too uneven to pick {topk:g} experts")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        short = (-np.expm1(-scaled * middle)).sum(axis=1, keepdims=True) < topk
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return -np.expm1(-scaled * high)


def shares_of_counts(counts: Float64, topk: float, where: str) -> Float64:
    """Return pick shares from recorded counts, float64[layers, experts].

    Raises `ScenarioError`, naming `where`, if an expert has more picks than there were tokens.
    """
    totals = counts.sum(axis=1, keepdims=True)
    if (counts < 0).any() or (totals <= 0).any():
        raise ScenarioError(f"{where}: counts of every layer must be 0 or more and sum to more than 0")
    shares = counts / totals * topk
    if shares.max() > 1 + 1e-9:
        layer, expert = np.unravel_index(int(shares.argmax()), shares.shape)
        raise ScenarioError(
            f"{where}: layer {layer} gives expert {expert} {shares.max() / topk:.1%} of the picks; a token "
            f"picks each of its {topk:g} experts once, so at most {1 / topk:.1%} is possible"
        )
    return np.minimum(shares, 1.0)


def sample_counts(shares: Float64, tokens: int, samples: int, random: np.random.Generator) -> Float64:
    """Return picks of each expert by `tokens` tokens, float64[samples, layers, experts].

    Every layer of every sample has exactly tokens x (sum of the shares) picks: counts are drawn one by one
    and the rest is spread in proportion to their variances, as conditioning on the sum does.
    """
    shape = (samples, *shares.shape)
    variance = tokens * shares * (1.0 - shares)
    if tokens < _NORMAL_FROM:
        counts = random.binomial(tokens, np.broadcast_to(shares, shape)).astype(np.float64)
    else:
        counts = tokens * shares + np.sqrt(variance) * random.standard_normal(shape)
    whole = variance.sum(axis=-1, keepdims=True)
    part = np.divide(variance, whole, out=np.zeros_like(variance), where=whole > 0)
    excess = counts.sum(axis=-1, keepdims=True) - tokens * shares.sum(axis=-1, keepdims=True)
    counts = np.maximum(counts - excess * part, 0.0)
    wanted = tokens * shares.sum(axis=-1, keepdims=True)
    return counts * (wanted / np.maximum(counts.sum(axis=-1, keepdims=True), 1e-300))
