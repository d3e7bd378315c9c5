import numpy as np
import pytest

from simserve.core.request import Acceptance
from simserve.errors import ScenarioError


def test_the_mean_is_that_of_the_closed_form() -> None:
    """Independent drafts of probability p: (1 - p^(k+1)) / (1 - p) tokens per step."""
    draws = Acceptance((0.7,) * 4, seed=3)
    assert draws.mean_tokens == pytest.approx((1 - 0.7**5) / 0.3)
    tokens = draws.tokens(np.arange(400)[:, None], np.arange(500)[None, :])
    assert tokens.mean() == pytest.approx(draws.mean_tokens, rel=0.01)
    assert (tokens.min(), tokens.max()) == (1, 5)
    # Chance of exactly j accepted: p^j (1 - p), and p^4 for all.
    shares = np.bincount(tokens.ravel(), minlength=6)[1:] / tokens.size
    assert shares == pytest.approx([0.3, 0.21, 0.147, 0.1029, 0.2401], abs=0.005)


def test_draws_depend_on_request_and_step_only() -> None:
    draws = Acceptance((0.85, 0.6))
    whole = draws.tokens(np.arange(50)[:, None], np.arange(80))
    assert draws.tokens(np.array([7]), np.array([33]))[0] == whole[7, 33]
    assert draws.produced(7, 80).tolist() == [0, *np.cumsum(whole[7]).tolist()]
    assert np.corrcoef(whole[:-1].ravel(), whole[1:].ravel())[0, 1] == pytest.approx(0, abs=0.05)
    assert np.corrcoef(whole[:, :-1].ravel(), whole[:, 1:].ravel())[0, 1] == pytest.approx(0, abs=0.05)
    assert (Acceptance((0.85, 0.6), seed=1).tokens(np.arange(50)[:, None], np.arange(80)) != whole).any()


def test_certain_drafts() -> None:
    assert (Acceptance((1.0, 1.0)).tokens(np.arange(9), np.arange(9)) == 3).all()
    assert (Acceptance((0.0, 1.0)).tokens(np.arange(9), np.arange(9)) == 1).all()


def test_probabilities_are_checked() -> None:
    with pytest.raises(ScenarioError, match=r"acceptance: \[1\.2\]"):
        Acceptance((1.2,))
