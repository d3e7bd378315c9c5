"""What limits a pool, on runs of ten seconds of which every figure is chosen by hand."""

from __future__ import annotations

import dataclasses

import pytest
from results_by_hand import POOL, S, ints, replica, result, timeline

from simserve.core import LinkResult, SplitColumns, SplitResult, WaitReason
from simserve.metrics import summarize

SLOTS = dataclasses.replace(POOL, max_running=8)


def waits(**seconds: float) -> tuple[int, ...]:
    """Times in which somebody waited, by what the queue's head waited for."""
    return tuple(int(seconds.get(reason.name, 0) * S) for reason in WaitReason)


def limit(rows, *, steps=100, tokens=100, pairs=0, split=None, waited=(), op_ns=None):
    """What limits a run of 10 s whose timeline has these (seconds, running, waiting, KV blocks)."""
    at, lines = 0.0, []
    for seconds, running, waiting, blocks in rows:
        lines.append((at * S, (at + seconds) * S, running, waiting, blocks, 0, 0, 0))
        at += seconds
    one = replica(
        steps=steps,
        busy_ns=int(at * S),
        linear_tokens=tokens,
        decode_tokens=tokens,
        decode_pairs=pairs,
        timeline=timeline(lines),
        waited_ns=waited,
    )
    run = result(arrival_ns=[0], last_token_ns=[10 * S], replicas=(one,), pools=(SLOTS,), split=split)
    run = dataclasses.replace(run, pool_op_ns={"main": op_ns or {}})
    (found,) = summarize(run).limits
    assert found.pool == "main"
    return found


def test_a_queue_whose_head_lacks_blocks_is_memory_at_60_percent_fill() -> None:
    found = limit([(6, 4, 3, 60), (4, 4, 0, 50)], waited=waits(STEP=1, BLOCKS=5))
    assert found.resource == "KV capacity"
    assert found.waited == pytest.approx(0.6)
    assert found.waits == pytest.approx({"KV blocks": 5 / 6, "the step in flight": 1 / 6})


def test_a_queue_that_waits_for_slots_is_slots_only_if_blocks_are_left() -> None:
    waited = waits(STEP=2, SLOTS=6)
    assert limit([(8, 8, 3, 95), (2, 4, 0, 50)], waited=waited).resource != "scheduler slots"
    found = limit([(8, 8, 3, 50), (2, 4, 0, 50)], waited=waited)
    assert found.resource == "scheduler slots"
    assert found.waited == pytest.approx(0.8)
    assert found.waits == pytest.approx({"scheduler slots": 0.75, "the step in flight": 0.25})


def test_steps_of_collectives_are_communication() -> None:
    found = limit([(10, 4, 0, 50)], op_ns={"collectives": 78.0, "MLP": 2.0, "engine overhead": 20.0})
    assert found.resource == "links/communication"
    assert found.step_time == pytest.approx(
        {"kernels": 0.02, "links/communication": 0.78, "launches and host": 0.2}
    )


def test_launches_and_host_are_what_the_engine_adds() -> None:
    assert (
        limit([(10, 4, 0, 50)], op_ns={"MLP": 40.0, "engine overhead": 60.0}).resource == "launches and host"
    )
    assert limit([(10, 4, 0, 50)], op_ns={"MLP": 80.0, "engine overhead": 20.0}).resource == "small kernels"


def test_full_blocks_without_a_queue_limit_nothing() -> None:
    assert limit([(5, 4, 0, 100)]).resource == "nothing"


@pytest.mark.parametrize(
    ("steps", "tokens", "resource"),
    [
        (100, 8000, "compute"),  # 8e12 of 1e13 FLOP, 1e11 of 1e13 bytes
        (8000, 1000, "HBM bandwidth"),  # 1e12 of 1e13 FLOP, 8e12 of 1e13 bytes
        (2000, 2000, "small kernels"),  # 20 % of either
    ],
)
def test_a_busy_pool_is_limited_by_what_its_steps_use(steps: int, tokens: int, resource: str) -> None:
    found = limit([(10, 4, 0, 50)], steps=steps, tokens=tokens)
    assert found.resource == resource
    assert (
        f"{tokens / 100:.0f}% of the GPUs' peak FLOP/s and {steps / 100:.0f}% of their HBM" in found.evidence
    )


def test_a_queue_with_room_waits_for_the_steps() -> None:
    assert limit([(10, 4, 5, 50)], tokens=8000).resource == "compute"


def test_a_link_that_is_always_busy_comes_first() -> None:
    columns = SplitColumns(**{field.name: ints([-1]) for field in dataclasses.fields(SplitColumns)})
    link = LinkResult("main/0", "in", 1, 1, 9 * S)
    split = SplitResult(columns, (link,), "decode", False, 0, 0, 0)
    found = limit([(6, 4, 3, 95), (4, 4, 0, 50)], split=split)
    assert (found.resource, found.evidence) == (
        "KV transfer",
        "the in link of a replica was in use 90% of the time",
    )


def test_a_pool_without_steps_has_no_limit() -> None:
    assert summarize(result(arrival_ns=[0], last_token_ns=[10 * S])).limits == []
