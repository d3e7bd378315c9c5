"""Each checker against a fault that it must catch: a law that cannot fail proves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.core import Batch, Request, Result, Status
from simserve.engines.base import POLICIES
from simserve.errors import InvariantError
from simserve.kvcache import BlockPool
from simserve.sim.meters import Meter
from simserve.sim.recorder import GapRecorder, Recorder
from simserve.sim.replica import Replica
from simserve.sim.source import Source
from tests.laws.checkers import (
    LawBroken,
    all_laws,
    answers_have_their_length,
    gaps_are_those_of_the_columns,
    pools_are_empty,
    requests_are_conserved,
    results_agree,
    time_is_causal,
    work_is_conserved,
)
from tests.laws.world import World, make_trace

WORLD = World("vllm", {"max_num_batched_tokens": 16, "max_num_seqs": 6})
TRACE = make_trace([0, 0, 3000, 4000, 90_000], [9, 60, 17, 20, 5], [12, 3, 30, 9, 4])


def test_the_sound_run_passes_and_has_what_the_faults_need() -> None:
    result = WORLD.run(TRACE)
    all_laws(result, TRACE, WORLD.max_model_len)
    assert result.preemptions.sum() > 0
    assert sorted(set(result.status.tolist())) == [Status.COMPLETED, Status.REFUSED]


def test_a_request_that_is_lost(monkeypatch) -> None:
    send = Source._submit
    monkeypatch.setattr(Source, "_submit", lambda self, row: row == 2 or send(self, row))
    with pytest.raises(InvariantError, match="1 of 5 requests unfinished"):
        WORLD.run(TRACE)


def test_a_request_that_is_counted_twice() -> None:
    result = WORLD.run(TRACE)
    with pytest.raises(LawBroken, match="arrival ranks"):
        requests_are_conserved(replace(result, arrival_order=np.zeros(5, dtype=np.int64)), TRACE)


def test_a_refusal_without_a_reason(monkeypatch) -> None:
    monkeypatch.setattr(Recorder, "note", lambda self, request, reason: None)
    with pytest.raises(LawBroken, match="without a reason"):
        requests_are_conserved(WORLD.run(TRACE), TRACE)


def test_an_answer_that_is_cut_in_silence(monkeypatch) -> None:
    enqueue = Replica.enqueue
    cut = lambda self, request, length: enqueue(self, request, min(length, 10))  # noqa: E731
    monkeypatch.setattr(Replica, "enqueue", cut)
    with pytest.raises(LawBroken, match="wrong length"):
        answers_have_their_length(WORLD.run(TRACE), TRACE, WORLD.max_model_len)


def test_a_recorder_that_stamps_early(monkeypatch) -> None:
    complete = Recorder.complete
    early = lambda self, request, tokens, now_ns: complete(self, request, tokens, now_ns - 100_000)  # noqa: E731
    monkeypatch.setattr(Recorder, "complete", early)
    with pytest.raises(LawBroken, match="ended before it was scheduled"):
        time_is_causal(WORLD.run(TRACE))


def test_a_recorder_that_stamps_a_nanosecond_early(monkeypatch) -> None:
    complete = Recorder.complete
    early = lambda self, request, tokens, now_ns: complete(self, request, tokens, now_ns - 1)  # noqa: E731
    monkeypatch.setattr(Recorder, "complete", early)
    with pytest.raises(LawBroken, match="all gaps"):
        gaps_are_those_of_the_columns(WORLD.run(TRACE))


def test_a_gap_that_is_counted_twice(monkeypatch) -> None:
    add = GapRecorder.add
    twice = lambda self, gap_ns, count, steady: add(self, gap_ns, count + 1, steady)  # noqa: E731
    monkeypatch.setattr(GapRecorder, "add", twice)
    with pytest.raises(LawBroken, match="all gaps"):
        gaps_are_those_of_the_columns(WORLD.run(TRACE))


def test_a_token_that_nobody_counted(monkeypatch) -> None:
    run = Meter.run
    fewer = lambda self, start, end, policy, batch, live, steps: run(  # noqa: E731
        self, start, end, policy, batch, live - bool(live), steps
    )
    monkeypatch.setattr(Meter, "run", fewer)
    with pytest.raises(LawBroken, match="tokens came from"):
        work_is_conserved(WORLD.run(TRACE))


def test_a_policy_that_leaks_a_block(monkeypatch) -> None:
    """The block is never given back: the pool is not empty at the end, and a recount finds it at once."""
    update = POLICIES.get("vllm").update

    def leak(self: Any, batch: Batch, steps: int, finished: list[Request], lane: int = 0) -> None:
        update(self, batch, steps, finished, lane)
        if finished and self.pool.free:
            self.pool.take(1)

    monkeypatch.setattr(POLICIES.get("vllm"), "update", leak)
    with pytest.raises(LawBroken, match="KV blocks used, counted"):
        WORLD.run(TRACE)


def test_a_block_that_is_left_at_the_end() -> None:
    policy = WORLD.make_policy()
    policy.policy.pool.take(1)
    with pytest.raises(LawBroken, match=r"at the end: \(0, 0, 1\)"):
        pools_are_empty([policy])


def test_a_pool_that_invents_blocks(monkeypatch) -> None:
    monkeypatch.setattr(BlockPool, "used", property(lambda self: max(0, self.total - self.free - 1)))
    with pytest.raises(LawBroken, match="free"):
        WORLD.run(TRACE)


def test_a_clock_that_goes_back() -> None:
    policy = WORLD.make_policy()
    policy.next_batch(10)
    with pytest.raises(LawBroken, match="clock went back"):
        policy.next_batch(9)


def test_a_batch_that_is_never_reported() -> None:
    policy = WORLD.make_policy()
    policy.add(Request(0, 0, 5, 5))
    policy.next_batch(0)
    with pytest.raises(LawBroken, match="before its last one was reported"):
        policy.next_batch(5)


def test_a_replica_that_ignores_arrivals_in_a_run(monkeypatch) -> None:
    stepped = WORLD.run(TRACE, fast_forward=False)
    results_agree(WORLD.run(TRACE), stepped)
    monkeypatch.setattr(Replica, "_bring_forward", lambda self, boundary: None)
    with pytest.raises(LawBroken, match="first_scheduled_ns differs"):
        results_agree(WORLD.run(TRACE), stepped)


def test_a_run_that_is_one_step_too_long(monkeypatch) -> None:
    """A policy that promises to repeat itself once more than it would."""
    monkeypatch.setattr(
        "simserve.engines.decode_batch.DecodeGroup.steps_within", lambda self, blocks: 1 << 60
    )
    with pytest.raises((LawBroken, InvariantError)):
        results_agree(WORLD.run(TRACE), WORLD.run(TRACE, fast_forward=False))


def test_two_results_that_differ_in_one_row() -> None:
    result: Result = WORLD.run(TRACE)
    other = result.last_token_ns.copy()
    other[3] += 1
    with pytest.raises(LawBroken, match="last_token_ns differs"):
        results_agree(result, replace(result, last_token_ns=other))
