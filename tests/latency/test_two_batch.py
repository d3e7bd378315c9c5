"""Two halves that take turns on the wire, against the engines' own orders of kernels, played."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simserve.latency.overlap import Half, ideal, sglang_decode, sglang_prefill, vllm

LAYERS = 40
NS = st.integers(0, 1000)
TIMES = st.tuples(NS, NS, NS, NS, NS, NS)


class Stage(NamedTuple):
    """What a half does between two hand-overs: wait for what it sent, compute, send."""

    waits: bool
    computes: int
    sends: int = 0


def played_ns(order: list[tuple[int, Stage]]) -> int:
    """Run (half, stage) in order: one compute stream, one communication stream that serves sends in turn."""
    compute = wire = 0
    received = [0, 0]
    for half, stage in order:
        if stage.waits:
            compute = max(compute, received[half])
        compute += stage.computes
        if stage.sends:
            wire = max(wire, compute) + stage.sends
            received[half] = wire
    return max(compute, *received)


def alternating(stages: list[Stage], ahead: int) -> list[tuple[int, Stage]]:
    """Both halves through all layers, the first `ahead` stages before the second (SGLang's executor)."""
    whole = stages * LAYERS
    order = [(0, stage) for stage in whole[:ahead]]
    for place, stage in enumerate(whole):
        if place + ahead < len(whole):
            order.append((0, whole[place + ahead]))
        order.append((1, stage))
    return order


def half(times: tuple[int, ...]) -> Half:
    before, core, shared, experts, dispatch, combine = (np.array([float(LAYERS * ns)]) for ns in times)
    return Half(before, core, shared, experts, dispatch[0], combine[0])


def a_layer(times: tuple[int, ...]) -> int:
    return 2 * sum(times)


@given(TIMES)
def test_sglang_decode_is_its_operations_two_stages_apart(times) -> None:
    before, core, shared, experts, dispatch, combine = times
    stages = [
        Stage(False, before),
        Stage(False, core),
        # The send starts before the shared expert, which needs nothing of it.
        Stage(False, 0, dispatch),
        Stage(True, experts, combine),
        Stage(True, 0),
    ]
    order = []
    for who, stage in alternating(stages, 2):
        order.append((who, stage))
        if stage is stages[2]:
            order.append((who, Stage(False, shared)))
    assert abs(sglang_decode(half(times))[0] - played_ns(order)) <= 2 * a_layer(times)


@given(TIMES)
def test_sglang_prefill_is_its_operations_in_turn(times) -> None:
    before, core, shared, experts, dispatch, combine = times
    stages = [Stage(False, before + core, dispatch), Stage(True, experts, combine), Stage(False, shared)]
    order = []
    for who, stage in alternating(stages, 0):
        order.append((who, stage))
        if stage is stages[2]:
            order.append((who, Stage(True, 0)))
    assert abs(sglang_prefill(half(times))[0] - played_ns(order)) <= a_layer(times)


@given(TIMES)
def test_vllm_hands_over_at_every_exchange(times) -> None:
    """Each half computes until it has sent something, then the other does, as docs/design/dbo.md draws it."""
    before, core, shared, experts, dispatch, combine = times
    own = before + core
    order = [(0, Stage(False, own, dispatch)), (1, Stage(False, own, dispatch))]
    for _ in range(LAYERS - 1):
        order += [(0, Stage(True, experts, combine)), (1, Stage(True, experts, combine))]
        order += [(0, Stage(False, shared)), (0, Stage(True, own, dispatch))]
        order += [(1, Stage(False, shared)), (1, Stage(True, own, dispatch))]
    order += [(0, Stage(True, experts, combine)), (1, Stage(True, experts, combine))]
    played = played_ns(order)
    assert vllm(half(times))[0] >= played - 2 * a_layer(times)
    assert ideal(half(times))[0] <= played + 2 * a_layer(times)


@given(TIMES)
def test_no_order_beats_the_ideal(times) -> None:
    one = half(times)
    best = ideal(one)[0]
    assert all(order(one)[0] >= best - 1e-6 for order in (vllm, sglang_decode, sglang_prefill))


def test_what_hides_what_by_hand() -> None:
    """Per layer: attention 60 + 100, shared 20, experts 50, dispatch 70, combine 90; sums of 40 layers."""
    one = half((60, 100, 20, 50, 70, 90))
    assert vllm(one)[0] == LAYERS * (160 + 70 + 90 + 180)
    assert sglang_decode(one)[0] == LAYERS * 2 * (80 + 50 + 100)
    assert sglang_prefill(one)[0] == LAYERS * (320 + 70 + 90 + 90)  # combines wait for the second dispatch
    assert ideal(one)[0] == LAYERS * 460
