"""Weights: bytes per GPU, experts touched, FLOPs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ScenarioError
from simserve.model import (
    Parallelism,
    active_params,
    check_parallelism,
    flops_per_token,
    load_model,
    total_params,
    weight_bytes_per_gpu,
    weight_bytes_read,
    weight_bytes_total,
)
from simserve.model.layers import MoeFfn
from simserve.model.weights import weight_bytes_per_stage

V3 = load_model("deepseek-v3")


def moe_of(name: str) -> MoeFfn:
    ffn = load_model(name).layers[-1].ffns[-1]
    assert isinstance(ffn, MoeFfn)
    return ffn


def test_deepseek_v3_in_fp8() -> None:
    (stage,) = weight_bytes_per_stage(V3, Parallelism(), "fp8")
    assert stage.total / 1e9 == pytest.approx(671, rel=0.01)
    assert stage.attention / 1e9 == pytest.approx(11.4, rel=0.01)
    assert moe_of("deepseek-v3").expert_params(7168) / 1e6 == pytest.approx(44, rel=0.01)
    assert stage.routed_expert / 256 / 1e9 == pytest.approx(2.55, rel=0.01)


def test_gpt_oss_in_mxfp4_is_the_published_checkpoint() -> None:
    # arXiv 2508.10925 (Aug 2025), table 1: 60.8 GiB for 120b, 12.8 GiB for 20b
    assert weight_bytes_total(load_model("gpt-oss-120b"), "mxfp4") / 2**30 == pytest.approx(60.8, rel=0.01)
    assert weight_bytes_total(load_model("gpt-oss-20b"), "mxfp4") / 2**30 == pytest.approx(12.8, rel=0.01)


def test_wide_expert_parallelism_gives_each_gpu_its_experts_and_all_attention() -> None:
    # 32 redundant experts on 32 GPUs: 9 experts per GPU and layer, attention whole
    degrees = Parallelism(dp=32, ep=32)
    (stage,) = weight_bytes_per_stage(V3, degrees, "fp8", redundant_experts=32)
    assert stage.routed_expert == 9 * 58 * 3 * 7168 * 2048
    assert stage.attention / 1e9 == pytest.approx(11.4, rel=0.01)
    assert stage.shared_expert == 58 * 3 * 7168 * 2048


def test_tensor_parallelism_splits_a_dense_model_but_for_its_norms() -> None:
    spec = load_model("llama-3.1-70b")
    norms = (80 * 2 + 1) * 8192
    expected = (total_params(spec) - norms) * 2 / 8 + norms * 2
    assert weight_bytes_per_gpu(spec, Parallelism(tp=8), "bf16") == expected


def test_kv_projections_are_copied_beyond_their_heads() -> None:
    spec = load_model("llama-3.1-70b")
    (eight,) = weight_bytes_per_stage(spec, Parallelism(tp=8), "bf16")
    (sixteen,) = weight_bytes_per_stage(spec, Parallelism(tp=16), "bf16")
    kv_projection = 80 * 2 * 8192 * 128 * 2  # of one head
    assert sixteen.attention - kv_projection == (eight.attention - kv_projection) / 2


def test_pipeline_stages_hold_their_layers_and_ends() -> None:
    # 80 layers on 3 stages are 27, 27, 26
    spec = load_model("llama-3.1-70b")
    end = 128256 * 8192
    layer = (70_553_706_496 - 2 * end - 8192) // 80
    stages = [it.total for it in weight_bytes_per_stage(spec, Parallelism(pp=3), "bf16")]
    assert stages == [2 * (27 * layer + end), 2 * 27 * layer, 2 * (26 * layer + end + 8192)]
    assert weight_bytes_per_gpu(spec, Parallelism(pp=3), "bf16") == stages[0]


def test_a_tied_head_is_copied_to_the_last_stage() -> None:
    spec = load_model("gpt-3-175b")
    stages = weight_bytes_per_stage(spec, Parallelism(pp=2), "bf16")
    assert [it.embedding_and_head for it in stages] == [2 * 50257 * 12288] * 2


@pytest.mark.parametrize(("tokens", "expected"), [(1, 8), (8, 57), (32, 163), (64, 222), (128, 252)])
def test_experts_touched_by_uniform_routing(tokens: int, expected: int) -> None:
    assert moe_of("deepseek-v3").touched_experts(tokens) == pytest.approx(expected, abs=0.5)


def test_zero_experts_take_a_third_of_longcats_picks() -> None:
    assert moe_of("longcat-flash").touched_experts(1) == pytest.approx(8)


def test_a_step_reads_active_weights_for_one_token_and_all_for_many() -> None:
    embedding = 129280 * 7168
    one = weight_bytes_read(V3, 1, "bf16")
    assert one == pytest.approx(2 * (active_params(V3) - embedding + 7168))
    assert weight_bytes_read(V3, 1e6, "bf16") == pytest.approx(2 * total_params(V3))


def test_flops_are_two_per_active_parameter_without_the_lookup() -> None:
    spec = load_model("llama-3.1-8b")
    norms = (32 * 2 + 1) * 4096
    assert flops_per_token(spec) == 2 * (8_030_261_248 - 128256 * 4096 - norms)
    gpt = load_model("gpt-3-175b")
    assert flops_per_token(gpt) == 2 * (96 * 12 * 12288**2 + 50257 * 12288)


@pytest.mark.parametrize(
    ("name", "degrees", "message"),
    [
        ("llama-3.1-70b", {"tp": 3}, "tp = 3 does not divide the 64 attention heads"),
        ("llama-4-maverick", {"tp": 5}, "tp = 5 neither divides nor is a multiple of the 8 KV heads"),
        ("deepseek-v3", {"tp": 8, "ep": 3}, "ep = 3 does not divide tp . dp = 8"),
        ("deepseek-v3", {"dp": 48, "ep": 48}, "ep = 48 does not divide the 256 experts"),
        ("llama-3.1-8b", {"dp": 2, "ep": 2}, "has no experts"),
        ("llama-3.1-8b", {"tp": 0}, "tp = 0, allowed:"),
    ],
)
def test_degrees_that_do_not_divide_the_model(name: str, degrees: dict[str, int], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        check_parallelism(load_model(name), Parallelism(**degrees))


def test_more_stages_than_layers() -> None:
    with pytest.raises(
        ScenarioError, match=r"pp = 33 does not fit the 32 layers of llama-3\.1-8b; allowed: 1 to 32"
    ):
        weight_bytes_per_gpu(load_model("llama-3.1-8b"), Parallelism(pp=33), "bf16")


@given(
    name=st.sampled_from(["llama-3.1-8b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b", "longcat-flash"]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.integers(1, 4),
    dtype=st.sampled_from(["bf16", "fp8", "int4", "nvfp4"]),
)
def test_more_gpus_never_hold_more_each_and_always_all_together(
    name: str, tp: int, pp: int, dtype: str
) -> None:
    spec = load_model(name)
    here = weight_bytes_per_gpu(spec, Parallelism(tp=tp, pp=pp), dtype)
    assert weight_bytes_per_gpu(spec, Parallelism(tp=2 * tp, pp=pp), dtype) <= here
    assert weight_bytes_per_gpu(spec, Parallelism(tp=tp, pp=2 * pp), dtype) <= here
    assert here * tp * pp >= weight_bytes_total(spec, dtype)
