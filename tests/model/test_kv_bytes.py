"""KV bytes: layouts, ranks, bounded layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.model import Parallelism, kv_bytes_per_token, kv_bytes_per_token_per_rank, load_model
from simserve.model.kv import kv_footprint


def per_rank(name: str, kv_dtype: str = "bf16", **degrees: int) -> int:
    return kv_bytes_per_token_per_rank(load_model(name), Parallelism(**degrees), kv_dtype)


def test_gqa_heads_split_then_replicate() -> None:
    whole = 2 * 80 * 8 * 128 * 2
    assert [per_rank("llama-3.1-70b", tp=tp) for tp in (1, 2, 4, 8, 16)] == [
        whole, whole // 2, whole // 4, whole // 8, whole // 8
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2-instruct", "step-3"])
def test_latents_and_single_heads_are_on_every_rank(name: str) -> None:
    assert per_rank(name, tp=8) == per_rank(name)


def test_pipeline_stage_with_most_layers_counts() -> None:
    # 61 layers on 4 stages are 15, 15, 16, 15
    assert per_rank("deepseek-v3", pp=4) == 16 * 1152


def test_low_precision_layouts() -> None:
    # Llama-3.1-8B: 32 layers x 8 KV heads x (K and V) of 128 values
    vectors = 32 * 8 * 2
    spec = load_model("llama-3.1-8b")
    assert kv_bytes_per_token(spec, "fp8") == vectors * 128
    assert kv_bytes_per_token(spec, "int8") == vectors * (128 + 2)
    assert kv_bytes_per_token(spec, "int4") == vectors * (64 + 2 * 2)


def test_flash_mla_layout_is_656_bytes() -> None:
    spec = load_model("deepseek-v3")
    assert kv_bytes_per_token(spec, "fp8_ds_mla") == 61 * 656
    assert kv_bytes_per_token(spec, "fp8") == 61 * 576
    with pytest.raises(ScenarioError, match="latent attention only"):
        kv_bytes_per_token(load_model("llama-3.1-8b"), "fp8_ds_mla")


def test_unknown_dtype_offers_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"unknown KV cache dtype 'fp9' \(did you mean 'fp8'"):
        kv_bytes_per_token(load_model("llama-3.1-8b"), "fp9")


def test_gpt_oss_grows_by_half_its_layers_and_keeps_a_constant_window() -> None:
    footprint = kv_footprint(load_model("gpt-oss-120b"), Parallelism())
    assert footprint.growing_bytes == 36_864
    assert footprint.bounded_bytes_per_sequence == 18 * 2048 * 128
    assert footprint.bytes_per_token == 73_728
    assert footprint.mean_bytes_per_token(100) == 73_728
    assert footprint.mean_bytes_per_token(128_000) == pytest.approx(36_864 + 36_864 * 128 / 128_000)


def test_linear_states_are_constant_per_sequence_and_split_over_tp() -> None:
    spec = load_model("qwen3.5-397b-a17b")
    one, eight = kv_footprint(spec, Parallelism()), kv_footprint(spec, Parallelism(tp=8))
    assert one.state_bytes_per_sequence == 45 * (64 * 128 * 128 * 4 + 12288 * 3 * 2)
    assert eight.state_bytes_per_sequence == one.state_bytes_per_sequence // 8


@given(
    name=st.sampled_from(
        ["llama-3.1-70b", "qwen3-235b-a22b", "gpt-oss-120b", "deepseek-v3", "llama-4-maverick"]
    ),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.integers(1, 8),
    kv_dtype=st.sampled_from(["bf16", "fp8", "int8", "int4"]),
)
def test_more_ranks_never_need_more(name: str, tp: int, pp: int, kv_dtype: str) -> None:
    here = per_rank(name, kv_dtype, tp=tp, pp=pp)
    assert per_rank(name, kv_dtype, tp=2 * tp, pp=pp) <= here
    assert per_rank(name, kv_dtype, tp=tp, pp=pp + 1) <= here
    assert here * tp * pp >= per_rank(name, kv_dtype)
