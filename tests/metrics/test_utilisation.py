"""MFU, HFU and MBU against hand-computed work, and totals per pool."""

from __future__ import annotations

import dataclasses

import pytest
from results_by_hand import POOL, S, replica, result, timeline

from simserve.metrics import summarize


def run(**changes):
    """A run of 10 s; the pool has 1e12 FLOP/s and 1e12 B/s per GPU."""
    counters = {
        "steps": 100,
        "busy_ns": 4 * S,
        "prefill_tokens": 1000,
        "decode_tokens": 500,
        "linear_tokens": 1500,
        "prefill_pairs": 40_000,
        "decode_pairs": 60_000,
    }
    return result(arrival_ns=[0], last_token_ns=[10 * S], replicas=(replica(**counters | changes),))


def test_mfu_and_mbu_by_hand():
    """1500 tokens * 1e9 + 100,000 pairs * 1e6 FLOPs; 100 steps * 1e9 + 60,000 * 1e6 bytes; 1e13 possible."""
    use = summarize(run()).replicas[0]
    assert use.mfu == pytest.approx((1500e9 + 100e9) / 1e13)
    assert use.hfu == use.mfu, "nothing was recomputed"
    assert use.mbu == pytest.approx((100e9 + 60e9) / 1e13)
    assert use.busy == pytest.approx(0.4)
    assert use.tokens_per_step == 15
    assert use.prefill_tokens_per_step == 10


def test_recomputed_tokens_are_in_hfu_only():
    use = summarize(run(recomputed_tokens=250, preemptions=3)).replicas[0]
    assert use.hfu == pytest.approx((1500e9 + 100e9) / 1e13)
    assert use.mfu == pytest.approx((1250e9 + 30_000 * 1e6 + 60e9) / 1e13)
    assert (use.recomputed_tokens, use.preemptions) == (250, 3)


def test_gpus_of_a_replica_share_the_work():
    two = dataclasses.replace(POOL, gpus_per_replica=2)
    one_gpu, two_gpus = (
        summarize(dataclasses.replace(run(), pools=(pool,))).replicas[0] for pool in (POOL, two)
    )
    assert two_gpus.mfu == pytest.approx((one_gpu.mfu or 0) / 2)
    assert two_gpus.mbu == pytest.approx((one_gpu.mbu or 0) / 2)


def test_a_pool_is_the_sum_of_its_replicas():
    busy, idle = (
        replica(name="a", decode_tokens=300, steps=10),
        replica(name="b", decode_tokens=100, steps=10),
    )
    other = replica(name="c", pool="other")
    summary = summarize(
        result(arrival_ns=[0, 0, 0], last_token_ns=[S] * 3, replica=[0, 0, 2], replicas=(busy, idle, other))
    )
    main, rest = summary.pools
    assert (main.name, main.gpus, main.requests, main.decode_tokens) == ("main", 2, 2, 400)
    assert main.imbalance == pytest.approx(300 / 200)
    assert (rest.name, rest.requests, rest.imbalance) == ("other", 1, None)
    assert rest.mfu is None, "no facts about that pool: no data"


def test_cost_of_tokens_from_the_price_of_all_gpus():
    """4 GPUs at 3.60 an hour for 10 s are 0.04; 2 tokens: 20,000 a million."""
    priced = dataclasses.replace(POOL, replicas=2, gpus_per_replica=2, price_per_gpu_hour=3.6)
    summary = summarize(
        dataclasses.replace(result(arrival_ns=[0, 0], last_token_ns=[10 * S] * 2), pools=(priced,))
    )
    assert summary.price_per_hour == pytest.approx(14.4)
    assert summary.cost_per_million_output_tokens == pytest.approx(20_000)
    assert summarize(run()).price_per_hour is None


def test_provenance_becomes_shares():
    summary = summarize(dataclasses.replace(run(), provenance_ns={"measured": 3.0, "analytic": 1.0}))
    assert summary.provenance == {"measured": 0.75, "analytic": 0.25}


def test_a_step_reads_the_experts_that_its_tokens_touch():
    """8 of 256 experts per token: 1, 8 and 128 tokens touch 8, 57 and 252 of them (rounded)."""
    experts = dataclasses.replace(POOL, weight_bytes=0.0, kv_bytes_per_token=0.0, expert_bytes=256e9)
    facts = dataclasses.replace(experts, expert_share=8 / 256)
    for tokens, touched in ((1, 8), (8, 57), (128, 252)):
        rows = timeline([(0, S, 1, 0, 0, 0, 100 * tokens, 100)])
        one = dataclasses.replace(run(timeline=rows), pools=(facts,))
        use = summarize(one).replicas[0]
        assert use.mbu == pytest.approx(100 * touched * 1e9 / 1e13, rel=0.01)
        spread = dataclasses.replace(one, pools=(dataclasses.replace(facts, expert_ranks=16),))
        assert (summarize(spread).replicas[0].mbu or 0) >= use.mbu  # tokens of all ranks meet at the experts
