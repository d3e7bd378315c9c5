import numpy as np
import pytest
from scipy.optimize import linprog

from simserve.experts import sample_counts
from simserve.experts.balancing import capped, eplb, water_filled
from simserve.experts.popularity import Zipf


def least_maximum(on_ranks: np.ndarray, load: np.ndarray) -> float:
    """The busiest rank's load under the best division of each expert's picks over its ranks, by LP."""
    edges = np.argwhere(on_ranks > 0)
    ranks = on_ranks.shape[1]
    cost = np.zeros(len(edges) + 1)
    cost[-1] = 1
    upper = np.zeros((ranks, len(edges) + 1))
    equal = np.zeros((len(load), len(edges) + 1))
    for number, (expert, rank) in enumerate(edges):
        upper[rank, number] = equal[expert, number] = 1
    upper[:, -1] = -1
    return float(linprog(cost, upper, np.zeros(ranks), equal, load).fun)


def test_water_filling_reaches_the_optimum_of_the_linear_programme() -> None:
    shares = Zipf(s=1.0).shares(2, 32, 4, seed=1)
    placement = eplb(Zipf(s=1.0).shares(2, 32, 4, seed=9), 8, 16)
    counts = sample_counts(shares, 64, 3, np.random.default_rng(0))
    ours = water_filled(placement, counts)
    assert ours.sum(axis=-1) == pytest.approx(counts.sum(axis=-1))
    for sample in range(3):
        for layer in range(2):
            best = least_maximum(placement.on_ranks[layer], counts[sample, layer])
            even = placement.rank_load(counts[sample])[layer].max()
            assert best * (1 - 1e-9) <= ours[sample, layer].max() <= min(even, best * 1.01)


def test_capacity_drops_or_reroutes_the_overflow() -> None:
    load = np.array([[10.0, 2.0, 2.0, 2.0]])
    assert capped(load, 1.0, reroute=False).tolist() == [[4.0, 2.0, 2.0, 2.0]]
    assert capped(load, 1.0, reroute=True).tolist() == [[4.0, 4.0, 4.0, 4.0]]
    assert capped(load, 5.0, reroute=False).tolist() == load.tolist()
