"""Copies on different nodes, and tokens that take the nearest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.experts.balancing import eplb, topology_aware
from simserve.experts.placement import Placement, imbalance
from simserve.experts.popularity import Zipf

loads = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).pareto(1.0, (3, 32)) + 0.01)


@settings(max_examples=60, deadline=None)
@given(load=loads, nodes=st.sampled_from([1, 2, 4]), redundant=st.sampled_from([0, 8, 16]))
def test_laws_of_a_placement(load: np.ndarray, nodes: int, redundant: int) -> None:
    placement = topology_aware(load, 8, redundant, nodes)
    assert (placement.on_ranks.sum(axis=1) == (32 + redundant) // 8).all()
    assert (placement.copies == eplb(load, 8, redundant).copies).all()
    assert placement.rank_load(load).sum(axis=1) == pytest.approx(load.sum(axis=1))
    assert 0.0 <= placement.crossing(load) <= 1.0 + 1e-9


def test_near_copies_by_hand() -> None:
    """Two nodes of two ranks; expert 0 on ranks 0 and 2, expert 1 on rank 1 alone, expert 2 on rank 3."""
    placement = Placement(np.array([[0, 1, 0, 2]]), 3, 4, nodes=2)
    assert placement.rank_load(np.array([[8.0, 4.0, 2.0]])).tolist() == [[4.0, 4.0, 4.0, 2.0]]
    # Half of the tokens of experts 1 and 2 cross, 3 of 14 picks; at random half of all would, 7.
    assert placement.crossing(np.array([[8.0, 4.0, 2.0]])) == pytest.approx(3 / 7)


def test_tokens_count_one_by_one() -> None:
    """Token by token: its node takes a copy of its own, else any copy of the expert at random."""
    random = np.random.default_rng(1)
    shares = Zipf(s=1.0).shares(1, 16, 1, seed=2)
    placement = topology_aware(shares, 8, 8, 4)
    held = placement.on_ranks[0]
    tokens, load, crossed = 60_000, np.zeros(8), 0
    for expert, node in zip(
        random.choice(16, tokens, p=shares[0] / shares[0].sum()), random.integers(0, 4, tokens), strict=True
    ):
        near = held[expert].reshape(4, 2)[node]
        weights = held[expert].copy()
        if near.sum():
            weights[:] = 0.0
            weights[2 * node : 2 * node + 2] = near
        rank = random.choice(8, p=weights / weights.sum())
        load[rank] += 1
        crossed += rank // 2 != node
    assert placement.rank_load(shares)[0] * tokens == pytest.approx(load, rel=0.05)
    assert placement.crossing(shares) * 3 / 4 == pytest.approx(crossed / tokens, rel=0.02)


def test_fewer_picks_cross_nodes_than_with_eplb_at_the_same_balance() -> None:
    shares = Zipf(s=0.8).shares(8, 256, 8, seed=1)
    near, plain = topology_aware(shares, 32, 32, 4), eplb(shares, 32, 32)
    assert near.crossing(shares) < 0.85
    assert plain.crossing(shares) == 1.0
    gammas = [imbalance(one.rank_load(shares)).mean() for one in (near, plain)]
    assert gammas[0] < 1.15 * gammas[1]


def test_ranks_that_do_not_divide_over_nodes_are_refused() -> None:
    with pytest.raises(ScenarioError, match="8 ranks do not spread evenly over 3 nodes"):
        topology_aware(np.ones((1, 8)), 8, 0, 3)
