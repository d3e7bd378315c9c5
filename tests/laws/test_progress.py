"""Laws about waiting: idle systems, order of admission, memory, and runs that cannot go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.core import Batch, Chunk, Request, Status, Wait, WaitReason
from simserve.engines.base import POLICIES, Scheduler
from simserve.errors import InvariantError
from simserve.router.base import ROUTERS, RouterParams
from simserve.sim import ReplicaSpec, simulate
from tests.laws.checkers import LawBroken, nobody_queues, oldest_is_admitted_first
from tests.laws.settings import every_world, fewer
from tests.laws.world import World, deployments, make_trace, name_of, traces, worlds
from tests.sim.plain_latency import PlainLatency

MS = 1_000_000


def without_timeout(world: World) -> World:
    """Static batching waits for company by design; without a timeout it must not."""
    params = {**world.params, "timeout_ms": 0} if world.policy == "static" else world.params
    return world.but(params=params)


@every_world
@fewer
@given(data=st.data())
def test_an_idle_system_adds_no_queueing(world: World, data) -> None:
    deployed = data.draw(deployments(without_timeout(world)))
    trace = data.draw(traces())
    apart = make_trace(
        [row * 10 * MS for row in range(len(trace))],
        trace.prompt_tokens,
        trace.output_tokens,
        max_tokens=trace.max_tokens,
    )
    nobody_queues(deployed.run(apart))


def test_planted_a_policy_that_waits_for_company() -> None:
    world = World("static", {"batch_size": 2, "timeout_ms": 0.01})
    with pytest.raises(LawBroken, match="queued in an idle system"):
        nobody_queues(world.run(make_trace([0], [5], [3])))


FIRST_COME = [
    world
    for world in worlds()
    if world.params.get("scheduling_policy") != "priority"
    and not world.params.get("enable_priority_scheduling")
]


@pytest.mark.parametrize("world", FIRST_COME, ids=name_of)
@fewer
@given(data=st.data())
def test_the_oldest_is_admitted_first(world: World, data) -> None:
    oldest_is_admitted_first(data.draw(deployments(world)).run(data.draw(traces())))


def test_planted_the_last_to_come_is_served_first(monkeypatch) -> None:
    policy = POLICIES.get("orca")
    monkeypatch.setattr(policy, "add", lambda self, request: self._waiting.appendleft(request))
    with pytest.raises(LawBroken, match="overtaken"):
        oldest_is_admitted_first(
            World("orca", {"max_num_seqs": 1}).run(make_trace([0, 1, 2], [5] * 3, [4] * 3))
        )


@every_world
@fewer
@given(data=st.data())
def test_halving_memory_never_raises_the_peak_batch(world: World, data) -> None:
    """Equal requests that come together; with unequal ones a burst may well be larger after a longer wait."""
    rows, prompt, output = data.draw(st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(1, 20)))
    trace = make_trace([0] * rows, [prompt] * rows, [output] * rows)
    blocks = 2 * data.draw(st.integers(world.kv_blocks, 60))
    peaks = [world.but(kv_blocks=n).run_watched(trace)[1][0].peak_running for n in (blocks, blocks // 2)]
    memory_limits_the_batch(*peaks)


def memory_limits_the_batch(peak: int, peak_with_half: int) -> None:
    if peak_with_half > peak:
        raise LawBroken(f"{peak_with_half} requests ran at once in half the memory, {peak} in all of it")


def test_planted_a_policy_that_likes_small_memories(monkeypatch) -> None:
    orca = POLICIES.get("orca")
    init = orca.__init__

    def fewer_slots_in_larger_pools(self: Any, params: Any, **options: Any) -> None:
        init(self, params, **options)
        self._max_num_seqs = 120 // options["kv_blocks"]

    monkeypatch.setattr(orca, "__init__", fewer_slots_in_larger_pools)
    trace = make_trace([0] * 9, [4] * 9, [4] * 9, max_tokens=[4] * 9)
    peaks = [World("orca").but(kv_blocks=n).run_watched(trace)[1][0].peak_running for n in (40, 20)]
    assert peaks == [3, 6]
    with pytest.raises(LawBroken, match="half the memory"):
        memory_limits_the_batch(*peaks)


class Stalling(Scheduler):
    """A policy that takes requests and never serves them; `decide` says how it passes the time."""

    running = 0
    kv_used_blocks = 0
    kept_out = WaitReason.STEP

    def __init__(self, decide: Callable[[Stalling, int], Batch | Wait], running: int = 0) -> None:
        self.requests: list[Request] = []
        self.decide = decide
        self.running = running
        self.decoding = False

    @property
    def waiting(self) -> int:
        return len(self.requests)

    def add(self, request: Request) -> None:
        self.requests.append(request)

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        return self.decide(self, now_ns) if self.requests else Wait()

    def update(self, batch: Batch, steps: int, finished: Any, lane: int = 0) -> None:
        pass


def never_last(policy: Stalling, now_ns: int) -> Batch:
    """The first piece of a prompt, again and again."""
    return Batch(0, 0, [Chunk(policy.requests[0], 1, 0, last=False)], [], [], [])


def starved_decodes(policy: Stalling, now_ns: int) -> Batch:
    """One request may decode but is never given a step; the other's prompt is computed for ever."""
    if not policy.decoding:
        policy.decoding = True
        return Batch(0, 0, [Chunk(policy.requests[0], 5, 0, last=True)], policy.requests[:1], [], [])
    return Batch(0, 0, [Chunk(policy.requests[1], 1, 0, last=False)], [], [], [])


def empty(policy: Stalling, now_ns: int) -> Batch:
    return Batch(0, 0, [], [], [], [])


def only_padding(policy: Stalling, now_ns: int) -> Batch:
    return Batch(1, 10, [], [], [], [], repeats=1 << 60)


STALLS = {
    "sleeps": Stalling(lambda policy, now_ns: Wait()),
    "sleeps although it holds requests": Stalling(lambda policy, now_ns: Wait(), running=2),
    "wants to look again in the past": Stalling(lambda policy, now_ns: Wait(now_ns)),
    "looks again every nanosecond": Stalling(lambda policy, now_ns: Wait(now_ns + 1)),
    "repeats empty batches": Stalling(empty),
    "repeats a piece of a prompt": Stalling(never_last),
    "starves those who decode": Stalling(starved_decodes),
    "computes padding": Stalling(only_padding),
}


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("name", STALLS)
def test_a_run_that_cannot_go_on_stops_and_names_requests(name: str, stages: int) -> None:
    policy = Stalling(STALLS[name].decide, STALLS[name].running)
    spec = ReplicaSpec("replica-7", "all", 1, policy, PlainLatency(stages=stages), 100, 4, 60, "as set")
    begun = time.process_time()
    with pytest.raises(InvariantError) as caught:
        simulate(
            make_trace([0, 0], [5, 5], [3, 3]), [spec], ROUTERS.get("round_robin")(RouterParams(), seed=0)
        )
    assert "0" in str(caught.value).split("first", 1)[1], "names the first request that is stuck"
    assert time.process_time() - begun < 5


def test_a_long_prompt_in_small_pieces_is_not_stuck() -> None:
    """21,000 steps in a row show no token, but each of them computes something for the first time."""
    world = World("vllm", {"max_num_batched_tokens": 1}).but(
        kv_blocks=6000, max_model_len=22_000, watched=False
    )
    result = world.run(make_trace([0], [21_000], [1]))
    assert result.status.tolist() == [Status.COMPLETED]
    assert result.replicas[0].steps == 21_000
