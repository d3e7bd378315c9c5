"""vLLM's scheduler, step by step, on queues small enough to be followed by hand (blocks of 4 tokens)."""

from __future__ import annotations

from typing import Any

from simserve.core import Batch, Request, Wait
from simserve.engines.vllm import VllmParams, VllmPolicy

Step = dict[str, Any]


class Engine:
    """Plays the model: knows how long answers are, reports each step, and writes down what was decided."""

    def __init__(
        self, kv_blocks: int = 100, lanes: int = 1, max_model_len: int = 200, **settings: Any
    ) -> None:
        self.policy = VllmPolicy(
            VllmParams(**settings),
            kv_blocks=kv_blocks,
            block_size=4,
            max_model_len=max_model_len,
            lanes=lanes,
        )
        self.left: dict[int, int] = {}
        self.decoding: list[Request] = []

    def add(self, number: int, prompt: int, output: int = 10, priority: int = 0, arrival_ns: int = 0) -> None:
        self.left[number] = output
        self.policy.add(Request(number, arrival_ns, prompt, output, priority))

    def step(self) -> Step:
        """Run one step; return its decision with empty parts left out."""
        batch = self.policy.next_batch(0)
        assert isinstance(batch, Batch), "nothing to do"
        gone = [*batch.preempted, *batch.stalled]
        moving = [request for request in self.decoding if request not in gone]
        assert batch.decodes == len(moving)
        self.decoding = [request for request in self.decoding if request not in batch.preempted]
        self.decoding += [chunk.request for chunk in batch.chunks if chunk.last]
        finished = []
        for request in [*moving, *(chunk.request for chunk in batch.chunks if chunk.last)]:
            self.left[request.id] -= 1
            if not self.left[request.id]:
                finished.append(request)
                self.decoding.remove(request)
        self.policy.update(batch, 1, finished)
        made: Step = {
            "decodes": batch.decodes,
            "chunks": [(chunk.request.id, chunk.cached, chunk.tokens) for chunk in batch.chunks],
            "admitted": [request.id for request in batch.admitted],
            "preempted": [request.id for request in batch.preempted],
            "stalled": [request.id for request in batch.stalled],
        }
        return {name: value for name, value in made.items() if value}

    def steps(self, count: int) -> list[Step]:
        return [self.step() for _ in range(count)]


def test_the_budget_cuts_the_last_prompt_and_decodes_go_first() -> None:
    engine = Engine(max_num_batched_tokens=10)
    engine.add(0, 6)
    engine.add(1, 12)
    assert engine.steps(3) == [
        {"chunks": [(0, 0, 6), (1, 0, 4)], "admitted": [0, 1]},
        {"decodes": 1, "chunks": [(1, 4, 8)]},
        {"decodes": 2},
    ]


def test_a_prompt_beyond_the_budget_is_computed_in_pieces() -> None:
    engine = Engine(max_num_batched_tokens=10)
    engine.add(0, 25)
    assert engine.steps(4) == [
        {"chunks": [(0, 0, 10)], "admitted": [0]},
        {"chunks": [(0, 10, 10)]},
        {"chunks": [(0, 20, 5)]},
        {"decodes": 1},
    ]


def test_without_chunking_a_prompt_waits_for_room_in_the_budget_and_blocks_the_queue() -> None:
    engine = Engine(max_num_batched_tokens=10, enable_chunked_prefill=False)
    for number, prompt in enumerate([6, 5, 1]):
        engine.add(number, prompt, output=2)
    assert engine.steps(3) == [
        {"chunks": [(0, 0, 6)], "admitted": [0]},  # 5 do not fit beside 6, and the 1 behind may not overtake
        {"decodes": 1, "chunks": [(1, 0, 5), (2, 0, 1)], "admitted": [1, 2]},
        {"decodes": 2},
    ]


def test_the_threshold_limits_one_prompt_per_step_if_it_is_not_alone() -> None:
    engine = Engine(max_num_batched_tokens=20, long_prefill_token_threshold=5)
    engine.add(0, 12)
    engine.add(1, 3)
    assert engine.steps(2) == [
        {"chunks": [(0, 0, 5), (1, 0, 3)], "admitted": [0, 1]},
        {"decodes": 1, "chunks": [(0, 5, 5)]},
    ]


def test_the_threshold_spares_a_lone_request_only_in_the_newest_version() -> None:
    for version, tokens in (("0.33", 12), ("0.19", 5), ("0.15", 5)):
        engine = Engine(max_num_batched_tokens=20, long_prefill_token_threshold=5, version=version)
        engine.add(0, 12)
        assert engine.step() == {"chunks": [(0, 0, tokens)], "admitted": [0]}


def test_the_adaptive_threshold_is_a_fair_share_of_the_budget() -> None:
    """24 tokens for three requests are 8 each, more than the threshold; when one decodes it still counts."""
    engine = Engine(
        max_num_batched_tokens=24, long_prefill_token_threshold=5, long_prefill_token_threshold_adaptive=True
    )
    for number, prompt in enumerate([20, 20, 3]):
        engine.add(number, prompt, output=2)
    assert engine.steps(3) == [
        {"chunks": [(0, 0, 8), (1, 0, 8), (2, 0, 3)], "admitted": [0, 1, 2]},
        {"decodes": 1, "chunks": [(0, 8, 8), (1, 8, 8)]},  # the short one ends here
        {"chunks": [(0, 16, 4), (1, 16, 4)]},
    ]


def test_the_last_running_request_is_preempted_and_recomputed_before_those_that_wait() -> None:
    """Six blocks: both prompts fill two, both ninth tokens take one more, the thirteenth ones do not fit."""
    engine = Engine(kv_blocks=6)
    engine.add(0, 8, output=7)
    engine.add(1, 8, output=7)
    assert engine.steps(5) == [
        {"chunks": [(0, 0, 8), (1, 0, 8)], "admitted": [0, 1]},
        *[{"decodes": 2}] * 4,
    ]
    engine.add(2, 4)
    assert engine.step() == {"decodes": 1, "preempted": [1]}  # nobody is admitted in this step
    # The victim knows 8 + 5 tokens now; its four blocks do not fit beside four, and the 2 behind must wait.
    assert engine.step() == {"decodes": 1}
    assert engine.step() == {"chunks": [(1, 0, 13), (2, 0, 4)], "admitted": [1, 2]}
    assert engine.policy.pool.used == 4 + 1


def test_a_request_that_needs_the_block_itself_goes_if_it_is_the_last() -> None:
    """Five blocks: request 1, of the later admission, is the one that needs a third block first."""
    engine = Engine(kv_blocks=5)
    engine.add(0, 9)
    engine.add(1, 7)
    assert engine.steps(2) == [
        {"chunks": [(0, 0, 9), (1, 0, 7)], "admitted": [0, 1]},
        {"decodes": 2},
    ]
    assert engine.step() == {"decodes": 1, "preempted": [1]}


def test_the_gate_admits_a_prompt_only_if_all_of_it_fits() -> None:
    """Eight blocks, 12 tokens held by request 0, and a prompt of 24 tokens = 6 blocks that comes in tens."""
    for version, gate, admitted in (("0.33", True, False), ("0.33", False, True), ("0.15", True, True)):
        settings = {"version": version} if version == "0.15" else {"scheduler_reserve_full_isl": gate}
        engine = Engine(kv_blocks=8, max_num_batched_tokens=12, **settings)
        engine.add(0, 12)
        engine.step()
        engine.add(1, 24)
        expected = {"decodes": 1, "chunks": [(1, 0, 11)], "admitted": [1]} if admitted else {"decodes": 1}
        assert engine.step() == expected


def test_the_watermark_keeps_blocks_free_while_somebody_runs() -> None:
    """A tenth of 21 blocks (the null block counts) is 2. Alone a request may take them all."""
    engine = Engine(kv_blocks=20, watermark=0.1)
    engine.add(0, 68)  # 17 blocks
    engine.add(1, 8)  # 2 blocks: 3 are free, but 2 must stay so
    engine.add(2, 4)
    assert engine.step() == {"chunks": [(0, 0, 68)], "admitted": [0]}
    engine = Engine(kv_blocks=20, watermark=0.1)
    engine.add(0, 80)
    assert engine.step() == {"chunks": [(0, 0, 80)], "admitted": [0]}


def test_slots_limit_the_running_requests() -> None:
    engine = Engine(max_num_seqs=2)
    for number in range(3):
        engine.add(number, 4, output=2)
    assert engine.steps(3) == [
        {"chunks": [(0, 0, 4), (1, 0, 4)], "admitted": [0, 1]},
        {"decodes": 2},
        {"chunks": [(2, 0, 4)], "admitted": [2]},
    ]


def test_priority_orders_the_queue_and_arrival_breaks_ties() -> None:
    engine = Engine(max_num_seqs=1, scheduling_policy="priority")
    engine.add(0, 4, output=1, priority=2, arrival_ns=0)
    engine.add(1, 4, output=1, priority=1, arrival_ns=20)
    engine.add(2, 4, output=1, priority=1, arrival_ns=10)
    engine.add(3, 4, output=1, priority=0, arrival_ns=30)
    assert [engine.step()["admitted"] for _ in range(4)] == [[3], [2], [1], [0]]


def test_priority_preempts_the_least_urgent_wherever_it_stands() -> None:
    """Six blocks as above; the first in the list is the least urgent, and goes though it is not the last."""
    engine = Engine(kv_blocks=6, scheduling_policy="priority")
    engine.add(0, 8, priority=5)
    engine.step()
    engine.add(1, 8, priority=1)
    log = engine.steps(5)
    assert log[0] == {"decodes": 1, "chunks": [(1, 0, 8)], "admitted": [1]}
    assert {"decodes": 1, "preempted": [0]} in log


def test_a_victim_may_have_been_scheduled_in_the_same_step() -> None:
    """Five blocks. Request 0 needs none for its tenth token; 1, more urgent, needs one for its ninth."""
    engine = Engine(kv_blocks=5, scheduling_policy="priority")
    engine.add(0, 8, priority=5)
    engine.step()
    engine.add(1, 8, priority=1)
    assert engine.steps(2) == [
        {"decodes": 1, "chunks": [(1, 0, 8)], "admitted": [1]},
        {"decodes": 1, "preempted": [0]},
    ]
    assert engine.policy.pool.used == 3  # the victim's three blocks came back, one of them is taken


def test_decodes_beyond_the_budget_miss_the_step_and_keep_their_place() -> None:
    engine = Engine(max_num_batched_tokens=3, max_num_seqs=8)
    for number in range(4):
        engine.add(number, 1, output=4)
    assert engine.steps(3) == [
        {"chunks": [(0, 0, 1), (1, 0, 1), (2, 0, 1)], "admitted": [0, 1, 2]},
        {"decodes": 3},
        {"decodes": 3},
    ]


def test_nothing_to_do_is_a_wait() -> None:
    assert Engine().policy.next_batch(0) == Wait()


def test_a_run_lasts_until_the_blocks_end() -> None:
    """One request of 7 tokens in 4 blocks: 9 more tokens fit, however long the answer is."""
    engine = Engine(kv_blocks=4)
    engine.add(0, 7)
    engine.step()
    batch = engine.policy.next_batch(0)
    assert isinstance(batch, Batch)
    assert (batch.decodes, batch.decode_context, batch.repeats) == (1, 8, 9)


def test_a_run_is_sealed_while_nobody_could_be_admitted() -> None:
    for settings, waiting, sealed in (({}, [], False), ({"max_num_seqs": 1}, [], True), ({}, [1], True)):
        engine = Engine(kv_blocks=4, **settings)
        engine.add(0, 12)
        engine.step()
        for number in waiting:
            engine.add(number, 12)
        batch = engine.policy.next_batch(0)
        assert isinstance(batch, Batch)
        assert batch.sealed is sealed


def test_pieces_of_one_prompt_follow_each_other_through_the_lanes() -> None:
    """With two microbatches in flight the second piece is scheduled before the first has come out."""
    policy = Engine(lanes=2, max_num_batched_tokens=10).policy
    policy.add(Request(0, 0, 15, 5))
    first, second = policy.next_batch(0, lane=1), policy.next_batch(0, lane=0)
    assert isinstance(first, Batch)
    assert isinstance(second, Batch)
    pieces = [(chunk.cached, chunk.tokens, chunk.last) for batch in (first, second) for chunk in batch.chunks]
    assert pieces == [(0, 10, False), (10, 5, True)]
    policy.update(first, 1, (), lane=1)
    assert policy.next_batch(0, lane=1) == Wait()
    policy.update(second, 1, (), lane=0)
    assert policy.next_batch(0, lane=1) == Wait()
    decode = policy.next_batch(0, lane=0)
    assert isinstance(decode, Batch)
    assert (decode.decodes, decode.decode_context) == (1, 16)


def test_a_piece_waits_while_every_victim_is_in_flight() -> None:
    """Three blocks, four lanes: request 1 and two pieces of request 0 fly, the third finds no block."""
    for priority in ("fcfs", "priority"):
        settings = {"scheduling_policy": priority, "scheduler_reserve_full_isl": False}
        policy = Engine(kv_blocks=3, lanes=4, max_num_batched_tokens=4, **settings).policy
        for number, prompt in ((1, 4), (0, 12)):
            policy.add(Request(number, 0, prompt, 1, priority=1 - number))
            assert isinstance(policy.next_batch(0, lane=number), Batch)
        assert isinstance(policy.next_batch(0, lane=2), Batch)
        assert policy.next_batch(0, lane=3) == Wait()
        assert policy.pool.free == 0
