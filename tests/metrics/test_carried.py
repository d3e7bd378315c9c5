"""The judgement of a load wherever the work piles up, on runs whose answer is known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from results_by_hand import MS, S, result

from simserve.core import SplitColumns, SplitResult, Status
from simserve.metrics.stability import judge


def shared(n: int, every_ns: int, stay_ns: np.ndarray):
    """Everybody is taken in at once and stays for so long."""
    arrival = np.arange(n) * every_ns
    return result(arrival_ns=arrival, first_scheduled_ns=arrival, last_token_ns=arrival + stay_ns)


@pytest.mark.parametrize(
    ("n", "verdict"), [(100, "too short"), (290, "too short"), (310, "stable"), (3000, "stable")]
)
def test_a_load_is_carried_only_by_a_run_of_three_residence_times(n: int, verdict: str) -> None:
    """10 requests/s that stay for 10 s each: nothing is known before 30 s."""
    found = judge(shared(n, 100 * MS, np.full(n, 10 * S)))
    assert found.verdict == verdict
    assert found.service_s == 10
    if verdict == "too short":
        assert found.needed_s == 30
        assert found.needed_requests == pytest.approx(300, abs=5)


def test_a_batch_that_grows_without_end_is_not_carried() -> None:
    """Nobody waits, but the n-th of 1,000 stays n * 20 ms longer: 100 arrive while 83 leave (1 / 1.2)."""
    stay = 2 * S + np.arange(1000) * 20 * MS
    found = judge(shared(1000, 100 * MS, stay))
    assert (found.verdict, found.backlog_requests) == ("unstable", 0)


def test_work_that_waits_between_the_sides_of_a_split_counts() -> None:
    """Prefill keeps up with 10 requests/s; the decode side takes one every 130 ms."""
    arrival = np.arange(1000) * 100 * MS
    decoding = 50 * MS + np.arange(1000) * 130 * MS
    zero = np.zeros(1000, np.int64)
    columns = SplitColumns(
        zero, arrival, arrival + 40 * MS, decoding, decoding, decoding, zero, zero + 1, zero
    )
    run = result(
        arrival_ns=arrival,
        first_scheduled_ns=arrival,
        last_token_ns=decoding + 2 * S,
        split=SplitResult(columns, (), "decode", False, 0, 0, 0),
    )
    found = judge(run)
    assert found.verdict == "unstable"
    assert found.service_s == pytest.approx(2.04), "prefill and decode, not what lies between"
    assert found.backlog_requests == 999 - 769, "769 decode at the last arrival, whose own prompt is computed"


def test_clients_that_give_up_are_not_carried() -> None:
    """Every fourth client gives up; those that remain are served at once."""
    n = 1000
    gone = np.arange(n) % 4 == 0
    arrival = np.arange(n) * 100 * MS
    run = result(
        arrival_ns=arrival,
        last_token_ns=np.where(gone, -1, arrival + S),
        status=np.where(gone, int(Status.ABANDONED), 0),
    )
    assert judge(run).verdict == "unstable"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("load", [1.15, 1.3, 2.0])
def test_a_shorter_run_never_carries_what_a_longer_one_does_not(load: float, seed: int) -> None:
    """A server of 32 places, each taken for 3.2 s: 10 requests/s at most."""
    gaps = np.random.default_rng(seed).exponential(S / (10 * load), 4000)
    whole = np.cumsum(gaps).astype(np.int64)
    verdicts = []
    for n in (4000, 2000, 1000, 500, 250, 120, 60, 30):
        free = np.zeros(32, np.int64)
        starts = np.empty(n, np.int64)
        for i, at in enumerate(whole[:n].tolist()):
            place = int(free.argmin())
            starts[i] = max(at, int(free[place]))
            free[place] = starts[i] + 3200 * MS
        run = result(arrival_ns=whole[:n], first_scheduled_ns=starts, last_token_ns=starts + 3200 * MS)
        verdicts.append(judge(run).verdict)
    assert verdicts[0] == "unstable"
    first = next(i for i, one in enumerate(verdicts) if one != "unstable")
    assert "stable" not in verdicts[:first]
    assert verdicts[first] == "too short", verdicts
