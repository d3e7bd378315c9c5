"""The table of the slowest rank's cost against brute force: every token routed, every rank timed."""

import numpy as np
import pytest
from expert_cases import picks_by_race

from simserve.experts import contiguous, pick_shares
from simserve.experts.balancing import eplb
from simserve.experts.rank_load import RankMaximum

LAYERS, EXPERTS, TOPK, RANKS = 6, 64, 4, 8


def cost_us(tokens: np.ndarray) -> np.ndarray:
    """A kernel with a floor, as all are."""
    return np.maximum(30.0, 5.0 + 0.08 * tokens)


def brute_force(weights: np.ndarray, placement, tokens: int, steps: int) -> np.ndarray:
    random = np.random.default_rng(99)
    totals = np.zeros(steps)
    for step in range(steps):
        counts = np.stack([picks_by_race(row, tokens, TOPK, random) for row in weights]).astype(float)
        per_rank = placement.rank_load(counts)
        totals[step] = cost_us(per_rank * RANKS / TOPK).max(axis=1).sum()
    return totals


@pytest.mark.parametrize("tokens", [40, 400])
@pytest.mark.parametrize("balanced", [False, True])
def test_mean_within_2_and_p99_within_5_percent(tokens: int, balanced: bool) -> None:
    random = np.random.default_rng(4)
    weights = random.permuted(np.tile(np.arange(1.0, EXPERTS + 1) ** -0.8, (LAYERS, 1)), axis=1)
    shares = pick_shares(weights, TOPK)
    placement = eplb(shares, RANKS, 16) if balanced else contiguous(LAYERS, EXPERTS, RANKS)
    real = brute_force(weights, placement, tokens, 250)
    table = RankMaximum(shares, placement, samples=200)
    assert table.mean_us(tokens, cost_us) == pytest.approx(real.mean(), rel=0.02)
    sampled = cost_us(table.busiest(tokens, 2000, seed=1) * tokens).sum(axis=1)
    assert np.percentile(sampled, 99) == pytest.approx(np.percentile(real, 99), rel=0.05)


def test_the_few_samples_of_a_run_give_the_mean_of_many() -> None:
    shares = pick_shares(np.random.default_rng(1).pareto(1.2, (58, 256)) + 0.1, 8)
    placement = contiguous(58, 256, 32)
    few, many = (RankMaximum(shares, placement, samples=n).mean_us(4096, cost_us) for n in (12, 200))
    assert few == pytest.approx(many, rel=0.01)


def test_one_rank_is_never_late() -> None:
    shares = pick_shares(np.ones((3, 16)), 2)
    assert RankMaximum(shares, contiguous(3, 16, 1)).mean_us(100, cost_us) == pytest.approx(3 * 30.0)
