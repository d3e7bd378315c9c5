import numpy as np
import pytest
from expert_cases import picks_by_race

from simserve.errors import ScenarioError
from simserve.experts import pick_shares, sample_counts
from simserve.experts.placement import shares_of_counts
from simserve.experts.popularity import POPULARITIES, popularity_of


@pytest.mark.parametrize("s", [0.0, 0.5, 1.0, 1.5])
def test_pick_shares_are_those_of_a_router_that_picks_k_different_experts(s: float) -> None:
    weights = np.arange(1.0, 65) ** -s
    shares = pick_shares(weights[None, :], 8)[0]
    counts = picks_by_race(weights, 20_000, 8, np.random.default_rng(1))
    assert shares.sum() == pytest.approx(8)
    assert shares == pytest.approx(counts / 20_000, abs=0.02)


def test_counts_have_every_pick_and_the_spread_of_a_real_router() -> None:
    weights = np.arange(1.0, 65) ** -0.8
    shares = pick_shares(weights[None, :], 8)
    random = np.random.default_rng(2)
    counts = sample_counts(shares, 128, 4000, random)[:, 0]
    assert counts.sum(axis=1) == pytest.approx(np.full(4000, 128 * 8.0))
    real = np.array([picks_by_race(weights, 128, 8, random) for _ in range(1000)])
    assert counts.mean(axis=0) == pytest.approx(real.mean(axis=0), rel=0.05, abs=0.5)
    assert counts.std(axis=0)[:16] == pytest.approx(real.std(axis=0)[:16], rel=0.12)


def test_a_histogram_with_more_picks_than_tokens_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"expert 0 90\.0% of the picks.*at most 50\.0%"):
        shares_of_counts(np.array([[90.0, 5.0, 5.0]]), 2, "here")


def test_every_popularity_fills_every_layer() -> None:
    settings = {
        "zipf": {"s": 1.0},
        "dirichlet": {"concentration": 0.5},
        "power_law": {"alpha": 1.2},
        "histogram": {"counts": ((3.0, 1.0, 2.0, 2.0) * 4,)},
    }
    for name in set(POPULARITIES.names()) - {"trace"}:
        shares = popularity_of({"kind": name, **settings.get(name, {})}).shares(3, 16, 4, seed=5)
        assert shares.shape == (3, 16)
        assert shares.sum(axis=1) == pytest.approx(np.full(3, 4.0))
        assert ((shares > 0) & (shares <= 1)).all()


def test_power_law_draws_follow_its_density() -> None:
    weights = popularity_of({"kind": "power_law", "alpha": 2.0, "spread": 100.0}).weights(
        1, 200_000, np.random.default_rng(0)
    )[0]
    # P(x > t) = (1/t - 1/100) / (1 - 1/100) for density x^-2 between 1 and 100
    for t in (2.0, 10.0, 50.0):
        assert (weights > t).mean() == pytest.approx((1 / t - 0.01) / 0.99, rel=0.05)
