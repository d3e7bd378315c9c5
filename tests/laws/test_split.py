"""Laws of the prefill/decode split, on workloads and links made to break them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.core import Result, Status, Trace
from simserve.engines.presets import ENGINES
from simserve.sim import LocalRule, SwitchRule
from tests.laws.checkers import (
    LawBroken,
    _demand,
    answers_have_their_length,
    gaps_are_those_of_the_columns,
    pools_are_empty,
    requests_are_conserved,
    results_agree,
    time_is_causal,
)
from tests.laws.settings import few, fewer
from tests.laws.split_world import LAYERS, TOKEN_BYTES, SplitWorld, split_worlds
from tests.laws.world import MAX_MODEL_LEN, World, make_trace, traces

every_engine = pytest.mark.parametrize("policy", [name for name, engine in ENGINES.items() if engine.disagg])


def split_rows(result: Result) -> np.ndarray:
    """Rows that were split and completed."""
    assert result.split is not None
    return (result.split.columns.prefill_replica >= 0) & (result.status == Status.COMPLETED)


def stages_ns(result: Result) -> dict[str, np.ndarray]:
    """The five stages of the split rows, from their stamps alone."""
    assert result.split is not None
    rows, c = split_rows(result), result.split.columns
    arrival, shown = result.arrival_ns[rows], result.first_token_ns[rows]
    shown = np.where(shown >= 0, shown, result.last_token_ns[rows])
    queued, computed = c.prefill_scheduled_ns[rows], c.prefill_end_ns[rows]
    room, moved, decode = c.room_ns[rows], c.transfer_end_ns[rows], c.decode_scheduled_ns[rows]
    waited_first = (room - arrival) * result.split.room_first
    start = np.maximum(room, computed)
    return {
        "queue P": queued - arrival - waited_first,
        "prefill": computed - queued,
        "transfer": moved - start,
        "queue D": waited_first + (start - computed) + (decode - moved),
        "first decode step": shown - decode,
    }


def stages_add_up(result: Result) -> None:
    """No stage is negative, and together they are the time to the first token, to the nanosecond."""
    rows = split_rows(result)
    stages = stages_ns(result)
    for name, spent in stages.items():
        _demand(spent >= 0, f"negative {name}")
    shown = np.where(result.first_token_ns >= 0, result.first_token_ns, result.last_token_ns)[rows]
    _demand(sum(stages.values()) == shown - result.arrival_ns[rows], "stages do not add up to TTFT")


def bytes_are_conserved(result: Result) -> None:
    """What the prompts needed left one side and reached the other, no more and no less."""
    assert result.split is not None
    c = result.split.columns
    out = sum(link.moved_bytes for link in result.split.links if link.direction == "out")
    into = sum(link.moved_bytes for link in result.split.links if link.direction == "in")
    _demand(out == into == int(c.transfer_bytes.sum()), f"{out} bytes out, {into} in")
    arrived = c.transfer_ok == 1
    needed = TOKEN_BYTES * (result.prompt_tokens - c.decode_cached_tokens)
    _demand((c.transfer_bytes == needed) | ~arrived, "bytes of a prompt")
    for link in result.split.links:
        slack = (len(result) + 1) * 2 * LAYERS
        _demand(
            link.moved_bytes * 1_000_000_000 <= link.bytes_per_s * (link.busy_ns + slack),
            f"{link.replica} {link.direction} moved more than it can",
        )


def lengths_hold(result: Result, trace: Trace) -> None:
    """Answers have their length; requests whose transfer failed for good have none and a reason."""
    failed = result.status == Status.UNFINISHED
    _demand((result.output_tokens == 0) & (result.reason >= 0) | ~failed, "failed without a reason")
    if not failed.any():
        answers_have_their_length(result, trace, MAX_MODEL_LEN)


def laws(result: Result, trace: Trace) -> None:
    requests_are_conserved(result, trace)
    lengths_hold(result, trace)
    time_is_causal(result)
    gaps_are_those_of_the_columns(result)
    stages_add_up(result)
    bytes_are_conserved(result)


def check(world: SplitWorld, trace: Trace, **options) -> Result:
    result, policies = world.run(trace, **options)
    laws(result, trace)
    pools_are_empty(policies)
    stepped, policies = world.run(trace, fast_forward=False, **options)
    pools_are_empty(policies)
    results_agree(result, stepped)
    return result


@every_engine
@few
@given(data=st.data())
def test_open_loop(policy: str, data) -> None:
    check(data.draw(split_worlds(policy)), data.draw(traces()))


@every_engine
@few
@given(data=st.data())
def test_closed_loop_and_sessions(policy: str, data) -> None:
    world, trace = data.draw(split_worlds(policy)), data.draw(traces(sessions=True))
    check(world, trace, closed_loop=data.draw(st.sampled_from([None, 1, 3, 8])))


SCHEDULERS = [
    {"max_num_batched_tokens": 16, "async_scheduling": True},
    {"max_num_batched_tokens": 16, "version": "0.15"},
    {"max_num_batched_tokens": 16, "scheduling_policy": "priority"},
    {"max_num_batched_tokens": 16, "watermark": 0.2},
    {"max_num_batched_tokens": 64, "enable_chunked_prefill": False},
]


@pytest.mark.parametrize("params", SCHEDULERS, ids=str)
@fewer
@given(data=st.data())
def test_every_way_of_vllm(params, data) -> None:
    world = data.draw(split_worlds()).but(params=params)
    check(world, data.draw(traces(sessions=data.draw(st.booleans()))))


SGLANG_WAYS = [
    {"chunked_prefill_size": 16, "max_prefill_tokens": 32},
    {"chunked_prefill_size": -1, "max_running_requests": 3},
    {"chunked_prefill_size": 16, "enable_priority_scheduling": True},
]


@pytest.mark.parametrize("params", SGLANG_WAYS, ids=str)
@fewer
@given(data=st.data())
def test_every_way_of_sglang(params, data) -> None:
    world = data.draw(split_worlds("sglang")).but(params=params)
    check(world, data.draw(traces(sessions=data.draw(st.booleans()))))


@fewer
@given(data=st.data())
def test_a_prefill_side_with_pipeline_stages(data) -> None:
    world = data.draw(split_worlds()).but(stages=3, overlap="request")
    check(world, data.draw(traces()))


@every_engine
@few
@given(data=st.data())
def test_ranks_that_step_together(policy: str, data) -> None:
    world = data.draw(split_worlds(policy)).but(ranks=True)
    check(world, data.draw(traces(sessions=data.draw(st.booleans()))))


@few
@given(data=st.data())
def test_replicas_that_change_sides(data) -> None:
    world = data.draw(split_worlds()).but(
        prefill=data.draw(st.integers(1, 3)),
        router=data.draw(st.sampled_from(["round_robin", "least_outstanding_tokens"])),
        router_params={},
        switch=SwitchRule(
            data.draw(st.sampled_from([700, 3000])), 900, data.draw(st.sampled_from([1, 2])), 0
        ),
    )
    check(world, data.draw(traces(sessions=data.draw(st.booleans()))))


@every_engine
@few
@given(data=st.data())
def test_prefill_does_not_see_how_fast_decoding_is(policy: str, data) -> None:
    """Nor the links, as long as nothing waits for room: prompts leave at the same times."""
    world = data.draw(split_worlds(policy)).but(
        extra_blocks=10_000, decode_latency=(900, 9, 3, 1), failure_rate=0.0, local=None, mixed=0
    )
    trace = data.draw(traces())
    first, _ = world.run(trace)
    second, _ = world.but(decode_latency=(400, 2, 1, 0), bytes_per_s=500_000_000).run(trace)
    assert first.split is not None
    assert second.split is not None
    for name in ("prefill_scheduled_ns", "prefill_end_ns", "prefill_replica"):
        if first.split.room_first:
            continue  # a prompt there waits until the decoding side has looked at it
        assert (getattr(first.split.columns, name) == getattr(second.split.columns, name)).all(), name


@fewer
@given(data=st.data())
def test_a_split_that_keeps_everything_whole_is_none(data) -> None:
    """All requests stay with the mixed replicas: to the nanosecond what these do alone."""
    replicas, trace = data.draw(st.integers(1, 3)), data.draw(traces(sessions=True))
    trace = replace(trace, prompt_tokens=np.minimum(trace.prompt_tokens, MAX_MODEL_LEN - 1))  # none refused
    params = {"max_num_batched_tokens": 16, "max_num_seqs": 6}
    split, _ = SplitWorld(params=params, mixed=replicas, local=LocalRule(1 << 40, None)).run(trace)
    plain = World(policy="vllm", params=params, replicas=replicas).run(trace)
    for name in ("arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns", "preemptions"):
        assert (getattr(split, name) == getattr(plain, name)).all(), name
    assert split.gaps.sum_ns == plain.gaps.sum_ns


def test_a_planted_fault_is_caught() -> None:
    trace = make_trace([0, 0, 50], [10, 30, 20], [5, 3, 4])
    result, _ = SplitWorld().run(trace)
    laws(result, trace)
    assert result.split is not None
    result.split.columns.transfer_end_ns[1] -= 5_000
    with pytest.raises(LawBroken, match="negative transfer"):
        stages_add_up(result)
    result.split.columns.transfer_bytes[1] += 1
    with pytest.raises(LawBroken, match="bytes out"):
        bytes_are_conserved(result)
