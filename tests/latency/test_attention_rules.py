"""The rules for what no table measures: cached prefixes and mixed batches, judged on two cards that do
not ship.

The tables given to the rules hold neither; the constants were found on the RTX 4090 file and on the
diagonal of the first RTX PRO 6000 file, so the others are judges.
"""

import numpy as np
import pytest
from extra_profiles import needs_extra, read_extra, write_attention_tables

from simserve.hardware import load_gpu
from simserve.latency import ProfileStore, shipped_profiles
from simserve.latency.kernels.attention import DecodeAttention
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.prefill import PrefillAttention, cached_keys_seen
from simserve.latency.roofline import peaks_of

FILES = {
    "rtx4090_llama-3.1-8b_tp1": ("rtx_4090", (32, 8, 128)),
    "rtxpro6000_llama-3.1-8b_tp1": ("rtx_pro_6000", (32, 8, 128)),
    "rtxpro6000_llama-3.1-8b_tp2": ("rtx_pro_6000", (16, 4, 128)),
    "rtxpro6000_qwen3-32b_tp1": ("rtx_pro_6000", (64, 8, 128)),
    "rtxpro6000_qwen3-30b-a3b_tp1": ("rtx_pro_6000", (32, 4, 128)),
    "rtxpro6000_qwen3-30b-a3b_tp2": ("rtx_pro_6000", (16, 2, 128)),
}


def kernels(gpu: str, heads: Heads, store: ProfileStore) -> tuple[DecodeAttention, PrefillAttention]:
    card = load_gpu(gpu)
    machine = Machine(gpu, peaks_of(card), store, False, card.sm_arch)
    decode = DecodeAttention(machine, heads)
    return decode, PrefillAttention(machine, heads, decode)


@needs_extra
@pytest.mark.parametrize("name", FILES)
def test_cached_prefix_and_mixed_batches_against_measurements(name, tmp_path):
    gpu, shape = FILES[name]
    rows = write_attention_tables(tmp_path, gpu, f"{name}_attention", shape)
    heads = Heads(*shape, 0, "bf16", "bf16")
    prefill = kernels(gpu, heads, ProfileStore([tmp_path], shipped=False))[1]

    cached = rows[(rows.n_decode == 0) & (rows.kv_prefill > 0)]
    shapes = zip(cached.prefill_chunk, cached.kv_prefill, strict=True)
    predicted = np.array([prefill.chunk_us(1, int(new), int(kv))[0] for new, kv in shapes])
    error = np.abs(predicted / cached.time_us - 1)
    assert error.median() <= 0.08
    assert error.quantile(0.95) <= 0.25

    mixed = rows[(rows.n_decode > 0) & (rows.prefill_chunk > 0)].sample(1500, random_state=0)
    error = [abs(_mixed_us(prefill, row) / row.time_us - 1) for row in mixed.itertuples()]
    assert np.median(error) <= 0.15
    assert np.quantile(error, 0.95) <= 0.40


def _mixed_us(prefill: PrefillAttention, row) -> float:
    chunk_us = prefill.chunk_us(1, int(row.prefill_chunk), int(row.kv_prefill))[0]
    beside = prefill.decode_beside(int(row.n_decode), np.array([float(row.kv_decode)]))
    assert beside is not None
    return max(chunk_us + beside[0].us[0], beside[1][0])


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm", "l40s", "a100_sxm"])
def test_limits_of_the_cached_prefix_rule(gpu):
    heads = Heads(32, 8, 128, 0, "bf16", "bf16")
    decode, prefill = kernels(gpu, heads, shipped_profiles())
    for new in (16, 512, 5000):
        fresh = prefill.chunk_us(1, new, 0)[0]
        assert prefill.chunk_us(1, new, 1)[0] == pytest.approx(fresh, rel=0.1)
        costs = [prefill.chunk_us(1, new, cached)[0] for cached in (64, 1024, 8192, 65536)]
        assert costs == sorted(costs)
    assert prefill.chunk_us(4, 1, 999)[0] * 4 == pytest.approx(decode.one_us(4, 1000.0))


def test_long_prefill_in_two_halves_costs_about_as_much_as_whole():
    """8192 tokens at once, or 4096 and 4096 on 4096 cached: the same pairs, so nearly the same time."""
    _, prefill = kernels("h100_sxm", Heads(32, 8, 128, 0, "bf16", "bf16"), shipped_profiles())
    halves = prefill.chunk_us(1, 4096, 0)[0] + prefill.chunk_us(1, 4096, 4096)[0]
    assert halves == pytest.approx(prefill.chunk_us(1, 8192, 0)[0], rel=0.12)


def test_a_window_bounds_what_cached_tokens_cost():
    _, prefill = kernels("h100_sxm", Heads(64, 8, 64, 128, "bf16", "bf16"), shipped_profiles())
    assert prefill.chunk_us(1, 512, 4096) == prefill.chunk_us(1, 512, 65536)
    assert cached_keys_seen(4, 3, 128) == 3
    # window 128, 100 cached, 64 new: queries 0..28 see 100, then 99, 98 ... 64
    seen = [min(100, 128 - place) for place in range(64)]
    assert cached_keys_seen(64, 100, 128) == pytest.approx(sum(seen) / 64, rel=0.01)


def test_no_decode_is_faster_than_memory_allows():
    """L40S rows up to 96 MB were measured from its L2: 33.5 MB cannot be read in 12 us at 0.864 TB/s."""
    decode, _ = kernels("l40s", Heads(32, 8, 128, 0, "bf16", "bf16"), shipped_profiles())
    assert decode.one_us(1, 8192.0) > 8192 * 4096 / 0.864e12 * 1e6


@needs_extra
@pytest.mark.parametrize("name", ["rtx4090_llama-3.1-8b_tp1", "rtxpro6000_qwen3-32b_tp1"])
def test_unequal_lengths_cost_what_their_mean_costs(name):
    """The contract of `StepLatency` knows only the mean context: measured mixtures of short and up to 16
    times longer sequences take 2 % longer in the median, while the longest sequence's cost would be twice
    as much."""
    rows = read_extra(f"{name}_skew")
    rows = rows[rows.regime == "pure"]
    by_mean = rows.t_mean_us / rows.t_skew_us - 1
    by_longest = rows.t_max_us / rows.t_skew_us - 1
    assert abs(by_mean.median()) <= 0.03
    assert by_mean.abs().quantile(0.95) <= 0.2
    assert by_longest.median() > 0.8


def test_a_chunk_bounds_what_cached_tokens_cost():
    """Chunks of 8192: 100 new tokens on 8150 cached: the first 42 see 8150 cached ones, the others none."""
    heads = Heads(40, 8, 128, 8192, "bf16", "bf16", chunked=True)
    decode, prefill = kernels("h100_sxm", heads, shipped_profiles())
    assert prefill._cached_keys_seen(100, 8150) == pytest.approx(42 * 8150 / 100)
    assert prefill._cached_keys_seen(100, 8192) == 0
    assert prefill._cached_keys_seen(100, 8193) == 1
    assert decode.one_us(64, 100_000) == decode.one_us(64, 4096)
    assert decode.one_us(64, 8192) > decode.one_us(64, 4096)
