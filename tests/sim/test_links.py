"""Shared links against closed forms: alone, two together, and two that meet at one end only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.model import load_model
from simserve.model.kv import kv_transfer_size, same_split
from simserve.sim.clock import Clock
from simserve.sim.disagg.links import LinkEnd, Links

GB = 1_000_000_000
LINE = 50 * GB
"""400 Gb/s."""


def run(sends: list[tuple[int, int, tuple[int, ...]]], ends: list[LinkEnd]) -> list[int]:
    """Send (start_ns, bytes, ends) and return when each was over."""
    env = Clock()
    links = Links(env)
    over = [-1] * len(sends)

    def begin(index: int, size: int, through: tuple[int, ...]) -> None:
        links.send(size, [ends[i] for i in through], lambda: over.__setitem__(index, env.now))

    for index, (start_ns, size, through) in enumerate(sends):
        event = env.timeout(start_ns)
        assert event.callbacks is not None
        event.callbacks.append(lambda _, i=index, s=size, t=through: begin(i, s, t))
    env.run()
    assert links.active == 0
    return over


def pair(*bytes_per_s: int) -> list[LinkEnd]:
    return [LinkEnd(f"end {i}", rate) for i, rate in enumerate(bytes_per_s)]


@pytest.mark.parametrize(("model", "ms"), [("llama-3.1-70b", 26.8), ("deepseek-v3", 5.8)])
def test_4096_tokens_over_50_gb_per_s(model: str, ms: float) -> None:
    """Published per-token sizes: 327,680 and 70,272 bytes; latents move once, not once per rank."""
    size = kv_transfer_size(load_model(model)).of(0, 4096, 4096)
    (end_ns,) = run([(0, size, (0, 1))], pair(LINE, LINE))
    assert end_ns / 1e6 == pytest.approx(ms, abs=0.05)
    assert end_ns == -(-size * 1_000_000_000 // LINE)


def test_two_at_once_take_twice_as_long() -> None:
    one = run([(0, 5 * GB, (0, 1))], pair(LINE, LINE))
    both = run([(0, 5 * GB, (0, 1)), (0, 5 * GB, (0, 1))], pair(LINE, LINE))
    assert one == [100_000_000]
    assert both == [200_000_000, 200_000_000]


def test_processor_sharing_of_two_that_overlap() -> None:
    """B, half of A's size, joins when half of A is left: they end together. A smaller B ends first."""
    over = run([(0, 4 * GB, (0, 1)), (40_000_000, 2 * GB, (0, 1))], pair(LINE, LINE))
    assert over == [120_000_000, 120_000_000]
    over = run([(0, 4 * GB, (0, 1)), (40_000_000, 1 * GB, (0, 1))], pair(LINE, LINE))
    # shared until B's 1 GB is over (40 ms at half the rate), A has 1 GB left: 20 ms alone
    assert over == [100_000_000, 80_000_000]


def test_what_one_cannot_use_goes_to_the_other() -> None:
    """Two senders into one receiver of 50 GB/s; the first sender has 10 GB/s, so the other gets 40."""
    over = run([(0, 1 * GB, (0, 2)), (0, 4 * GB, (1, 2))], pair(10 * GB, LINE, LINE))
    assert over == [100_000_000, 100_000_000]


def test_a_slow_receiver_does_not_hold_up_the_rest() -> None:
    over = run([(0, 1 * GB, (0, 1)), (0, 4 * GB, (0, 2))], pair(LINE, 10 * GB, LINE))
    assert over == [100_000_000, 100_000_000]


sends = st.lists(
    st.tuples(
        st.integers(0, 50_000),
        st.integers(1, 200_000),
        st.sampled_from([(0, 2), (1, 2), (0, 3), (1, 3)]),
    ),
    min_size=1,
    max_size=12,
)


@given(sends=sends)
def test_bytes_are_conserved_and_no_end_is_overdrawn(sends: list[tuple[int, int, tuple[int, ...]]]) -> None:
    ends = pair(3 * GB, 5 * GB, 4 * GB, 7 * GB)
    over = run(sends, ends)
    for index, end in enumerate(ends):
        mine = [i for i, send in enumerate(sends) if index in send[2]]
        assert end.moved_bytes == sum(sends[i][1] for i in mine)
        assert end.flows == 0
        slack = len(mine) + 1  # every end of a transfer is rounded up to a whole ns
        assert end.moved_bytes * 1_000_000_000 <= end.bytes_per_s * (end.busy_ns + slack)
    for (start_ns, size, through), end_ns in zip(sends, over, strict=True):
        slowest = min(ends[i].bytes_per_s for i in through)
        assert end_ns - start_ns >= size * 1_000_000_000 // slowest


def test_a_window_bounds_what_moves() -> None:
    """gpt-oss-120b: 18 of 36 layers keep 128 tokens; 8 heads of 64, keys and values, 2 bytes."""
    size = kv_transfer_size(load_model("gpt-oss-120b"))
    layer = 2 * 8 * 64 * 2
    assert size.of(0, 4096, 4096) == 18 * layer * 4096 + 18 * layer * 128
    assert size.of(0, 100, 100) == 36 * layer * 100
    assert size.of(4000, 4096, 4096) == 36 * layer * 96  # the rest is there already
    assert size.of(0, 1024, 4096) + size.of(1024, 4096, 4096) == size.of(0, 4096, 4096)


def test_a_type_of_one_byte_halves_it() -> None:
    spec = load_model("llama-3.1-70b")
    assert 2 * kv_transfer_size(spec, "fp8").of(0, 7, 7) == kv_transfer_size(spec, "bf16").of(0, 7, 7)


def test_heads_must_be_cut_only_where_the_ranks_hold_others() -> None:
    llama, deepseek = load_model("llama-3.1-70b"), load_model("deepseek-v3")
    assert same_split(llama, 4, 4)
    assert not same_split(llama, 4, 2)
    assert same_split(llama, 8, 16)  # 8 KV heads: one per rank either way
    assert same_split(deepseek, 8, 1)  # latents have no heads
