"""Variants: how they merge, what they may say, and where their mistakes are reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.deploy.build import build, build_all
from simserve.errors import UserError
from simserve.scenario import load_scenario
from simserve.scenario.variants import difference, merged

Write = Callable[..., Path]

SEED = "seed: 3\n"
"""Last line of the small scenario: variants follow from line 15 on."""


def with_variants(scenario_file: Write, text: str) -> Path:
    return scenario_file((SEED, SEED + "compare:\n" + text))


@pytest.mark.parametrize(
    ("base", "change", "wanted"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),  # mappings merge
        ({"pools": [{"tp": 1}, {"tp": 2}]}, {"pools": [{"tp": 4}]}, {"pools": [{"tp": 4}]}),  # lists do not
        ({"slo": {"ttft_ms": 1}}, {"slo": None}, {}),
        ({"slo": {"ttft_ms": 1, "tpot_ms": 2}}, {"slo": {"ttft_ms": None}}, {"slo": {"tpot_ms": 2}}),
        ({"engine": "vllm-0.33"}, {"engine": {"n": 1}}, {"engine": {"preset": "vllm-0.33", "n": 1}}),
        ({"engine": {"preset": "a", "n": 1}}, {"engine": "b"}, {"engine": "b"}),
        ({"engine": {"preset": "a", "n": 1}}, {"engine": {"preset": "b"}}, {"engine": {"preset": "b"}}),
        ({"router": {"kind": "a", "n": 1}}, {"router": {"n": 2}}, {"router": {"kind": "a", "n": 2}}),
    ],
)
def test_merging(base: dict[str, Any], change: dict[str, Any], wanted: dict[str, Any]) -> None:
    before = repr(base)
    assert merged(base, change) == wanted
    assert repr(base) == before


KEYS = st.sampled_from(["engine", "router", "preset", "kind", "workload", "limit"])
VALUES = st.one_of(st.integers(0, 2), st.booleans(), st.sampled_from(["a", "b"]))
TREES = st.recursive(
    VALUES, lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(KEYS, inner, max_size=4))
)


@given(st.dictionaries(KEYS, TREES, max_size=4), st.dictionaries(KEYS, TREES, max_size=4))
def test_a_difference_merges_to_what_was_wanted(base: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert merged(base, difference(base, wanted)) == wanted


def test_equal_scenarios_differ_in_nothing() -> None:
    plain = {"engine": {"preset": "a", "n": 1}, "pools": [{"tp": 1}], "model": "m"}
    assert difference(plain, plain) == {}


CASES = [
    # (variant text, line, words that the message must hold)
    ("  big: {engne: {}}\n", 16, ["compare.big.engne", "did you mean 'engine'"]),
    (
        "  big:\n    engine: {max_num_seq: 4}\n",
        17,
        ["compare.big.engine.max_num_seq", "did you mean 'max_num_seqs'"],
    ),
    ("  big:\n    engine: {max_num_seqs: 0}\n", 17, ["compare.big.engine.max_num_seqs", "found 0"]),
    ("  big:\n    pools:\n      - {gpu: h100_sxm, tp: 3}\n", 18, ["compare.big.pools[0].tp", "tp = 3"]),
    ("  big:\n    pools: []\n", 17, ["compare.big.pools", "at least 1"]),
    ("  big: {model: llama-3.1-8c}\n", 16, ["compare.big.model", "did you mean 'llama-3.1-8b'"]),
    ("  big: {model: llama-3.1-405b}\n", 11, ["pools[0]", "(in variant big)", "does not fit"]),
    ("  big: {router: randm}\n", 16, ["compare.big.router", "did you mean 'random'"]),
    ("  big: {workload: {rate_scale: -1}}\n", 16, ["compare.big.workload.rate_scale", "-1"]),
    ("  big: {workload: {limit: 5, trace: x.csv}}\n", 16, ["compare.big.workload", "exactly one of"]),
    ("  big: {seed: 4}\n", 16, ["compare.big.seed", "the scenario's seed"]),
    ("  big: {compare: {}}\n", 16, ["compare.big.compare"]),
    ("  big: 4\n", 16, ["compare.big", "found 4", "mapping"]),
    ("  big/small: {}\n", 16, ["compare.big/small", "letters, digits"]),
    ("  BASE: {}\n", 1, ["'base' and 'BASE' would share a folder"]),
    ("  [x]\n", 15, ["compare", "a mapping of keys"]),
]


@pytest.mark.parametrize(("text", "line", "words"), CASES)
def test_a_wrong_variant(scenario_file: Write, text: str, line: int, words: list[str]) -> None:
    path = with_variants(scenario_file, text)
    with pytest.raises(UserError) as caught:
        build_all(load_scenario(path))
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: "), message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_set_options_reach_base_and_variants(scenario_file: Write) -> None:
    path = with_variants(scenario_file, "  big: {engine: {max_num_seqs: 4}}\n")
    options = ["engine.watermark=0.1", "compare.big.engine.max_num_batched_tokens=512"]
    found = load_scenario(path, options)
    assert found.scenario.engine.options == {"watermark": 0.1}
    assert found.variants["big"].scenario.engine.options == {
        "watermark": 0.1,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 512,
    }


def test_runs_in_the_order_of_the_file_on_one_workload(scenario_file: Write) -> None:
    path = with_variants(
        scenario_file,
        "  z: {engine: orca}\n  a: {pools: [{gpu: h200_sxm}]}\n  slow: {workload: {rate_scale: 0.5}}\n",
    )
    found = build_all(load_scenario(path, ["base_name=now"]))
    assert list(found) == ["now", "z", "a", "slow"]
    assert found["z"].trace is found["a"].trace is found["now"].trace
    assert found["slow"].trace.arrival_ns[-1] == pytest.approx(2 * found["now"].trace.arrival_ns[-1], abs=2)
    assert found["slow"].loaded.scenario.seed == 3


@pytest.mark.parametrize(
    ("model", "tp", "kv_dtype", "intensity"),
    [  # FLOP per byte of a decoding query: domain figures at bf16; latents are copied, heads are split
        ("deepseek-v3", 8, "bf16", 2176 * 16 / 1152),
        ("deepseek-v3", 8, "fp8", 2176 * 16 / 576),
        ("llama-3.1-8b", 1, "bf16", 4),
        ("llama-3.1-8b", 4, "bf16", 4),
        ("qwen3-30b-a3b", 8, "bf16", 4),  # 4 query heads read a copy of one KV head on each GPU
    ],
)
def test_pools_say_their_decode_intensity(
    scenario_file: Write, model: str, tp: int, kv_dtype: str, intensity: float
) -> None:
    options = [f"model={model}", f"pools.0.tp={tp}", f"pools.0.kv_dtype={kv_dtype}", "pools.0.gpu=h200_sxm"]
    pool = build(load_scenario(scenario_file(), [*options, "pools.0.weights_dtype=fp8"])).pools[0]
    assert pool.decode_flop_per_kv_byte == pytest.approx(intensity)
    assert pool.kv_bytes_per_token_per_gpu * tp >= pool.kv_bytes_per_token


@pytest.mark.parametrize(
    ("gpu", "tp", "chunk", "reserved_mib"),
    [  # SGLang 0.5.23, memory_hook: 1.5 MiB a chunk token, 2 MiB a graph sequence, 512 MiB, 128 MiB a rank,
        # 8 MiB a prefill graph (up to the chunk: 50, 58 or 74 of them)
        ("l40s", 1, 4096, 1.5 * 4096 + 2 * 32 + 512 + 128 + 8 * 50),
        ("h100_sxm", 1, 8192, 1.5 * 8192 + 2 * 256 + 512 + 128 + 8 * 58),
        ("h100_sxm", 4, 8192, 1.5 * 8192 + 2 * 512 + 512 + 512 + 8 * 58),
        ("b200_sxm", 1, 16384, 1.5 * 16384 + 2 * 512 + 512 + 128 + 8 * 74),
    ],
)
def test_sglangs_defaults_follow_the_gpu(
    scenario_file: Write, gpu: str, tp: int, chunk: int, reserved_mib: float
) -> None:
    pool = build(
        load_scenario(scenario_file(), ["engine=sglang-0.5.23", f"pools.0.gpu={gpu}", f"pools.0.tp={tp}"])
    ).pools[0]
    assert pool.engine.options["chunked_prefill_size"] == chunk
    pages = 64 if gpu == "b200_sxm" else 1
    assert (pool.engine.block_size, pool.engine.overhead.name) == (pages, "sglang")
    free = (1 - pool.engine.gpu_memory_utilization) * pool.gpu.hbm_bytes / 2**20
    assert free == pytest.approx(reserved_mib, abs=0.0005 * pool.gpu.hbm_bytes / 2**20)


def test_a_small_chunk_still_leaves_ten_gib_free(scenario_file: Write) -> None:
    options = ["engine.preset=sglang-0.5.23", "engine.chunked_prefill_size=2048"]
    pool = build(load_scenario(scenario_file(), options)).pools[0]
    free = (1 - pool.engine.gpu_memory_utilization) * pool.gpu.hbm_bytes
    assert free == pytest.approx(10 * 2**30, abs=0.0005 * pool.gpu.hbm_bytes)
