"""Laws of placements, and the table of gamma of the domain page (256 experts, top 8, 128 tokens per rank)."""

import numpy as np
import pytest
from expert_cases import picks_by_race
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.experts import contiguous, imbalance, pick_shares, random_placement, sample_counts
from simserve.experts.balancing import eplb
from simserve.experts.placement import moved_slots
from simserve.experts.popularity import Zipf
from simserve.experts.state import swapped

GAMMA = {
    0.0: (1.04, 1.06, 1.07),
    0.3: (1.1, 1.4, 1.7),
    0.5: (1.25, 2.0, 2.4),
    0.8: (1.4, 3.0, 5.0),
    1.0: (1.7, 4.0, 8.0),
}
GROUPS = ((8, 32), (32, 32), (64, 64))
"""Ranks and redundant experts of the table's columns."""


@pytest.mark.parametrize("s", GAMMA)
def test_gamma_of_contiguous_experts_is_that_of_the_table(s: float) -> None:
    shares = Zipf(s=s).shares(24, 256, 8, seed=1)
    for (ranks, _), expected in zip(GROUPS, GAMMA[s], strict=True):
        counts = sample_counts(shares, 128 * ranks, 4, np.random.default_rng(0))
        gamma = imbalance(contiguous(24, 256, ranks).rank_load(counts)).mean()
        assert gamma == pytest.approx(expected, rel=0.30 if s else 0.02)


@pytest.mark.parametrize("s", GAMMA)
def test_eplb_with_exact_loads_leaves_4_to_9_percent(s: float) -> None:
    shares = Zipf(s=s).shares(10, 256, 8, seed=1)
    for ranks, redundant in GROUPS:
        counts = sample_counts(shares, 128 * ranks, 4, np.random.default_rng(0))
        assert 1.02 <= imbalance(eplb(shares, ranks, redundant).rank_load(counts)).mean() <= 1.09


def test_eplb_goes_stale_when_a_fifth_of_the_experts_swap() -> None:
    for s, worst in ((0.5, (1.4, 2.6, 5.0)), (1.0, (1.4, 2.6, 5.0))):
        shares = Zipf(s=s).shares(16, 256, 8, seed=3)
        after = swapped(shares, 0.2, [4])
        for (ranks, redundant), top in zip(GROUPS, worst, strict=True):
            stale = imbalance(eplb(shares, ranks, redundant).rank_load(after)).mean()
            assert 1.02 < stale <= top * 1.3
    assert stale > 2  # one expert per two ranks and much to lose


def test_gamma_agrees_with_a_router_that_picks_token_by_token() -> None:
    random = np.random.default_rng(7)
    weights = random.permuted(np.arange(1.0, 65) ** -0.8)
    placement = contiguous(1, 64, 8)
    real = [
        imbalance(placement.rank_load(picks_by_race(weights, 256, 4, random)[None].astype(float)))[0]
        for _ in range(250)
    ]
    ours = imbalance(placement.rank_load(sample_counts(pick_shares(weights[None], 4), 256, 2000, random)))
    assert ours.mean() == pytest.approx(np.mean(real), rel=0.01)
    assert np.percentile(ours, 99) == pytest.approx(np.percentile(real, 99), rel=0.05)


loads = st.integers(0, 2**32 - 1).map(
    lambda seed: (
        np.random.default_rng(seed).pareto(1.0, (3, 32)) + np.random.default_rng(seed).random((3, 32))
    )
)


@settings(max_examples=60, deadline=None)
@given(
    load=loads,
    ranks=st.sampled_from([2, 4, 8]),
    redundant=st.sampled_from([0, 8, 16]),
    nodes=st.sampled_from([1, 2]),
)
def test_laws_of_eplb(load: np.ndarray, ranks: int, redundant: int, nodes: int) -> None:
    placement = eplb(load, ranks, redundant, groups=4, nodes=nodes)
    assert placement.slots.shape == (3, 32 + redundant)
    assert (placement.copies >= 1).all()
    assert placement.copies.sum() == 3 * (32 + redundant)
    by_rank = placement.on_ranks.sum(axis=1)
    assert (by_rank == (32 + redundant) // ranks).all()
    spread = placement.rank_load(load)
    assert spread.sum(axis=1) == pytest.approx(load.sum(axis=1))
    if nodes == 1:  # heaviest first to the lightest: ranks differ by no more than the heaviest copy
        heaviest = (load / placement.copies).max(axis=1)
        assert (spread.max(axis=1) - spread.min(axis=1) <= heaviest * (1 + 1e-9)).all()


@settings(max_examples=40, deadline=None)
@given(load=loads)
def test_more_copies_never_make_the_heaviest_copy_heavier(load: np.ndarray) -> None:
    heaviest = [(load / eplb(load, 8, redundant).copies).max(axis=1) for redundant in (0, 8, 16, 32)]
    for more, fewer in zip(heaviest[1:], heaviest[:-1], strict=True):
        assert (more <= fewer + 1e-12).all()


def test_replication_is_optimal() -> None:
    """Copies given one by one to the largest load per copy minimise the largest (all divisions tried)."""
    load = np.array([[7.0, 5.0, 2.0, 1.0]])
    best = min(
        max(7 / a, 5 / b, 2 / c, 1 / d)
        for a in range(1, 6)
        for b in range(1, 6)
        for c in range(1, 6)
        for d in range(1, 6)
        if a + b + c + d == 8
    )
    assert (load / eplb(load, 2, 4).copies).max() == best


def test_hierarchical_keeps_a_groups_experts_on_one_node() -> None:
    load = np.random.default_rng(0).pareto(1.0, (5, 64))
    placement = eplb(load, ranks=8, redundant=16, groups=8, nodes=4)
    for layer in range(5):
        held = placement.on_ranks[layer].reshape(64, 4, 2).sum(axis=2) > 0
        nodes_of_group = held.reshape(8, 8, 4).any(axis=1)
        assert (nodes_of_group.sum(axis=1) == 1).all()


def test_moved_slots_count_what_a_rank_lacks() -> None:
    before = contiguous(1, 8, 4)
    assert moved_slots(before, before).sum() == 0
    after = eplb(np.array([[8.0, 7, 6, 5, 4, 3, 2, 1]]), 4, 0)
    fetched = [
        len(set(after.slots[0, 2 * rank : 2 * rank + 2].tolist()) - {2 * rank, 2 * rank + 1})
        for rank in range(4)
    ]
    assert moved_slots(before, after)[0].tolist() == fetched


def test_slots_that_do_not_divide_are_refused_with_what_would() -> None:
    with pytest.raises(ScenarioError, match=r"256 experts and 0 redundant.*72 ranks.*32 redundant"):
        contiguous(1, 256, 72)


def test_random_placement_is_a_placement() -> None:
    placement = random_placement(4, 32, 8, seed=1, redundant=8)
    assert placement.copies.sum() == 4 * 40
    assert (placement.copies >= 1).all()
    assert (placement.slots[0] != placement.slots[1]).any()
