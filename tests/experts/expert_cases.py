"""Routers and balancers at their plainest, to compare with: token by token, no formulas."""

import numpy as np


def picks_by_race(weights: np.ndarray, tokens: int, topk: int, random: np.random.Generator) -> np.ndarray:
    """Counts of one layer, int64[experts]: each token takes the k largest of log weight + Gumbel noise."""
    scores = np.log(weights) + random.gumbel(size=(tokens, len(weights)))
    chosen = np.argpartition(-scores, topk - 1, axis=1)[:, :topk]
    return np.bincount(chosen.ravel(), minlength=len(weights))
