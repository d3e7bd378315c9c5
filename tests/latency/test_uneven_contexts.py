"""Decode steps of FlashAttention 2 over unequal contexts: the rule of splits, and what the longest add.

Judged on measured mixtures of two lengths on two cards that do not ship, none of which any constant was
found on.
"""

from __future__ import annotations

import heapq
from math import inf
from pathlib import Path

import numpy as np
import pytest
from extra_profiles import needs_extra, read_extra
from test_attention_rules import FILES, kernels, measured

from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.hardware import load_gpu
from simserve.latency import compile_step_latency, shipped_profiles
from simserve.latency.kernels.decode import Lengths, WalkTail, parts_of, splits
from simserve.latency.kernels.heads import Heads
from simserve.model import load_model
from simserve.model.spec import Parallelism

KEY_US, READ_US = 0.022, 0.0027
TAIL = WalkTail(8.0, 3.3, KEY_US, READ_US, 32, 8, 128, multiprocessors=188, longest=131_072)
"""Llama-3.1-8B on an RTX PRO 6000."""


def lengths(contexts: list[int], most: int = TAIL.kept) -> Lengths:
    ordered = sorted(contexts, reverse=True)
    return Lengths(len(contexts), sum(contexts), sum(c * c for c in contexts), ordered[:most])


def test_splits_are_those_of_flash_attention():
    """The example in the comment of `num_splits_heuristic`: 48 tiles on 108 slots are cut in two (0.89 of the
    slots at work), not in three (0.67). It counts two slots per multiprocessor."""
    assert splits(48, 54, 1000) == 2
    # 0.8 of the slots at work already: 301 of 376.
    assert splits(301, 188, 1000) == 1
    assert splits(300, 188, 1000) > 1
    # One tile, 100 slots, 1000 blocks: 85 parts would do, but 84 to 90 are all of 12 blocks or 84 parts' own;
    # 91 are of 11.
    assert splits(1, 50, 1000) == 91
    assert splits(1, 50, 7) == 7
    # 376 slots, 128 parts at most: 109 are 85 % of what those use.
    assert splits(1, 188, 100_000) == 109
    # 64 blocks in 11 parts are 10 of 6 and one of 4; 12 parts would be the same 6 blocks, so 12 is no choice:
    # 8 tiles in 12 parts fill 96 of 108 slots (0.89), in 11 only 88 (0.81), in 13 parts 104 (0.96).
    assert splits(8, 54, 64) == 13


def test_captured_calls_do_not_split_usual_contexts():
    """32 sequences x 8 heads on 188 multiprocessors: 131,072 keys in four parts (2.7 waves of 3)."""
    assert TAIL.part_keys(32) == 131_072 / 4
    assert TAIL.part_keys(40) == 131_072
    assert (
        WalkTail(8, 3, 0.02, 0.003, 32, 32, 128, 188, 131_072).part_keys(1) == 131_072
    )  # MHA is never split
    assert [TAIL.is_split(count) for count in (37, 38)] == [True, False]


def test_few_sequences_walk_as_long_as_the_longest():
    """Two at most are at work: each tile at its own pace, so the longest alone decides."""
    assert TAIL.equal_us(2, np.array([1000.0]), 32_768)[0] == pytest.approx(8 + 3.3 + 1000 * KEY_US)
    unequal = lengths([3000, 1000])
    mean = TAIL.equal_us(2, np.array([2000.0]), 32_768)[0]
    assert mean + TAIL.extra_us(unequal, 32_768) == pytest.approx(8 + 3.3 + 3000 * KEY_US)
    # In parts of 1,000 keys, a context of 3,000 is three tiles, which walk at once.
    assert TAIL.equal_us(1, np.array([3000.0]), 1000)[0] == pytest.approx(8 + 3.3 + 1000 * KEY_US)
    assert parts_of([3000, 1200], 1000, 9) == [1000, 1000, 1000, 1000, 200]


def test_equal_contexts_add_nothing_and_longer_ones_do():
    for count in (2, 16, 40, 128):
        equal = [1000] * count
        assert TAIL.extra_us(lengths(equal), 131_072) == pytest.approx(0.0)
        added = [TAIL.extra_us(lengths([*equal[1:], longest]), 131_072) for longest in (1500, 3000, 9000)]
        assert added == sorted(added)
        assert added[-1] > 0.49 * 8000 * KEY_US  # of two, the mean is halfway


def schedule_us(contexts: list[int], tail: WalkTail) -> float:
    """Tiles in the order of the grid (all sequences of a head, then the next head), each on the next free
    multiprocessor: a start without reading, then a walk at its own pace or its share of the bandwidth."""
    waiting = [length for _ in range(tail.kv_heads) for length in contexts][::-1]
    read_us = tail.read_us / tail.kv_heads
    now = pace = 0.0
    starting: list[tuple[float, int]] = []
    walking: list[float] = []
    while waiting or starting or walking:
        while waiting and len(starting) + len(walking) < tail.multiprocessors:
            heapq.heappush(starting, (now + tail.start_us, waiting.pop()))
        rate = min(1 / tail.key_us, 1 / (read_us * len(walking))) if walking else 0.0
        walked = now + (walking[0] - pace) / rate if walking else inf
        then = min(walked, starting[0][0] if starting else inf)
        pace, now = pace + (then - now) * rate, then
        while starting and starting[0][0] <= now:
            heapq.heappush(walking, pace + heapq.heappop(starting)[1])
        while walking and walking[0] <= pace + 1e-6:
            heapq.heappop(walking)
    return now


@pytest.mark.parametrize(("count", "within_us"), [(8, 0.5), (16, 0.5), (32, 6.0), (64, 8.0), (128, 8.0)])
def test_closed_form_against_the_schedule_of_tiles(count, within_us):
    """Contexts like those of a chat, in random order: on average over ten batches."""
    rng = np.random.default_rng(count)
    differences = []
    for _ in range(10):
        contexts = (250 + rng.gamma(2.0, 450.0, count)).astype(int).tolist()
        mean = sum(contexts) // count
        wanted = schedule_us(contexts, TAIL) - schedule_us([mean] * count, TAIL)
        differences.append(TAIL.extra_us(lengths(contexts), 131_072) - wanted)
    assert abs(np.mean(differences)) < within_us


@needs_extra
@pytest.mark.parametrize(("name", "p95"), list(zip(FILES, [0.1, 0.08, 0.08, 0.08, 0.08, 0.12], strict=True)))
def test_mixtures_against_measurements(name: str, p95: float, tmp_path: Path):
    """Calls outside graphs: with so many tiles that none is split (0.8 of two per multiprocessor), a few long
    contexts end alone; with fewer tiles contexts are split, and they do not."""
    _, prefill = measured(name, tmp_path)
    tail = prefill.tail(131_072)
    assert tail is not None
    rows = read_extra(f"{name}_skew")
    rows = rows[rows.regime == "pure"]
    split = np.array([tail.is_split(count) for count in rows.n])
    beyond_mean = rows.t_skew_us / rows.t_mean_us - 1
    few_long = (rows.nb <= 2) & (rows.kvs >= 1024)
    assert beyond_mean[split & few_long].median() < 0.05 < 0.09 < beyond_mean[~split & few_long].median()
    unsplit = rows[~split]
    predicted = []
    for row in unsplit.itertuples():
        contexts = [int(row.kv_big)] * int(row.nb) + [int(row.kvs)] * int(row.n - row.nb)
        mean_us = prefill.decode.one_us(int(row.n), float(row.kv_mean))
        predicted.append(1 + tail.extra_us(lengths(contexts, tail.kept), 131_072) / mean_us)
    error = np.abs(predicted / (unsplit.t_skew_us / unsplit.t_mean_us) - 1)
    before = np.abs(unsplit.t_mean_us / unsplit.t_skew_us - 1)
    assert error.median() <= 0.035
    assert error.quantile(0.95) <= p95 < before.quantile(0.95)


@needs_extra
@pytest.mark.parametrize("name", FILES)
def test_mixtures_beside_a_chunk_against_measurements(name: str, tmp_path: Path):
    """What the longest context exceeds the others (or the chunk's own) by it walks alone."""
    _, prefill = measured(name, tmp_path)
    tail = prefill.tail(131_072)
    assert tail is not None
    rows = read_extra(f"{name}_skew")
    rows = rows[rows.regime == "mixed"]
    chunk = rows.kp + rows.pc
    keys = np.maximum(rows.kv_big, chunk) - np.maximum(rows.kv_mean, chunk)
    # These files hold sums of three calls.
    error = (rows.t_mean_us + 3 * tail.key_us * keys) / rows.t_skew_us - 1
    before = rows.t_mean_us / rows.t_skew_us - 1
    assert abs(error.mean()) <= 0.025 < 0.05 < abs(before.mean())
    assert error.abs().quantile(0.95) <= 0.2 < before.abs().quantile(0.95)


@pytest.mark.parametrize(("gpu", "minds"), [("h100_sxm", False), ("b200_sxm", False), ("a100_sxm", False),
                                            ("l40s", True), ("rtx_pro_6000", True)])  # fmt: skip
def test_who_minds(gpu, minds):
    """FlashAttention 2 where a multiprocessor holds one tile; A100's holds two, and no mixtures are known."""
    prefill = kernels(gpu, Heads(32, 8, 128, 0, "bf16", "bf16"), shipped_profiles())[1]
    assert (prefill.tail(8192) is not None) == minds
    assert kernels(gpu, Heads(32, 8, 128, 4096, "bf16", "bf16"), shipped_profiles())[1].tail(8192) is None


def test_a_step_of_unequal_contexts():
    model, gpu = load_model("llama-3.1-8b"), load_gpu("rtx_pro_6000")
    latency = compile_step_latency(model, gpu, Parallelism(), overhead=VLLM)
    assert latency.uneven is not None
    level_ns = latency.uneven.level_ns(lengths([4000] + [1000] * 63))
    tail = latency.plan.attention[0].tail
    assert tail is not None
    assert level_ns == pytest.approx(32_000 * tail.extra_us(lengths([4000] + [1000] * 63), 131_072), rel=0.03)
    plain, longer = (np.array(latency.decode_page(64, 1, level)) for level in (0, level_ns))
    assert (np.diff(longer) - np.diff(plain) == level_ns).all()
    # A scheduler of another engine has kernels that share their work evenly.
    sglang = compile_step_latency(model, gpu, Parallelism(), overhead=VLLM.__class__("x", kernels="sglang"))
    assert sglang.uneven is None


def test_a_short_max_model_len_lets_graphs_split():
    """Captured for 4,096 tokens, one sequence of 4,000 is cut in parts; captured for 131,072, hardly."""
    model, gpu = load_model("llama-3.1-8b"), load_gpu("rtx_pro_6000")
    short, long = (
        compile_step_latency(model, gpu, Parallelism(), max_model_len=most, overhead=VLLM).step_ns(
            1, 4000, ()
        )
        for most in (4096, 131_072)
    )
    assert short < 0.9 * long
