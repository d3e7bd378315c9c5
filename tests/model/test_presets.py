"""Every preset against published figures: parameter counts, KV bytes, layer groups."""

import pytest

from simserve.model import active_params, kv_bytes_per_token, load_model, preset_names, total_params
from simserve.model.spec import DenseFfn, GqaAttention, LinearAttention, MlaAttention, ModelSpec, MoeFfn

# Total and active parameters in billions as published by the makers (model cards and reports), and KV bytes
# per token at 16 bit by hand: 2 x layers x KV heads x head size x 2, or layers x (512 + 64) x 2 for MLA.
PUBLISHED = {
    "llama-3.1-8b": (8.03, 8.03, 2 * 32 * 8 * 128 * 2),
    "llama-3.1-70b": (70.55, 70.55, 2 * 80 * 8 * 128 * 2),
    "llama-2-70b": (68.98, 68.98, 2 * 80 * 8 * 128 * 2),
    "mixtral-8x7b": (46.7, 12.9, 2 * 32 * 8 * 128 * 2),
    "qwen3-8b": (8.19, 8.19, 2 * 36 * 8 * 128 * 2),
    "qwen3-30b-a3b": (30.5, 3.35, 2 * 48 * 4 * 128 * 2),
    "qwen3-235b-a22b": (235.1, 22.2, 2 * 94 * 4 * 128 * 2),
    "deepseek-v2": (235.7, 21.4, 60 * 576 * 2),
    "deepseek-v3": (671.0, 37.6, 61 * 576 * 2),
    "kimi-k2-instruct": (1026.0, 32.9, 61 * 576 * 2),
    "longcat-flash": (560.7, 28.0, 56 * 576 * 2),
    "step-3": (316.3, 38.8, 2 * 61 * 256 * 2),
    "llama-4-maverick": (400.7, 17.2, 2 * 48 * 8 * 128 * 2),
    "gpt-3-175b": (175.0, 175.0, 2 * 96 * 96 * 128 * 2),
    "gpt-oss-120b": (116.83, 5.7, 2 * 36 * 8 * 64 * 2),
    "kimi-k2.5": (1026.0, 32.9, 61 * 576 * 2),
    "qwen3.5-397b-a17b": (397.0, 17.3, 2 * 15 * 2 * 256 * 2),
}

# Sizes of the published checkpoints, to the parameter (Hugging Face safetensors totals).
EXACT = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "codellama-34b": 33_743_970_304,
    "mistral-7b": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-120b": 116_829_156_672,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_totals_and_kv_agree_with_published_figures(name: str) -> None:
    spec = load_model(name)
    total, active, kv_bytes = PUBLISHED[name]
    assert total_params(spec) / 1e9 == pytest.approx(total, rel=0.01)
    assert active_params(spec) / 1e9 == pytest.approx(active, rel=0.01)
    assert kv_bytes_per_token(spec) == kv_bytes


@pytest.mark.parametrize("name", EXACT)
def test_totals_equal_the_checkpoint(name: str) -> None:
    assert total_params(load_model(name)) == EXACT[name]


@pytest.mark.parametrize(("name", "total", "active"), [("minimax-m2.5", 229, 10), ("glm-5", 744, 40)])
def test_makers_that_leave_embeddings_out_of_the_active(name: str, total: int, active: int) -> None:
    spec = load_model(name)
    ends = 2 * spec.vocab_size * spec.hidden_size
    assert round(total_params(spec) / 1e9) == total
    assert round((active_params(spec) - ends) / 1e9) == active


def test_every_preset_loads_and_names_its_source() -> None:
    for name in preset_names():
        spec = load_model(name)
        assert spec.name == name
        assert len(spec.source) > 10
        assert len(spec.order) == spec.num_layers
        assert all(spec.order.count(i) == group.count for i, group in enumerate(spec.layers))


def kinds(spec: ModelSpec) -> list[str]:
    """Layers first to last in short form."""
    names = []
    for index in spec.order:
        (attention,), (ffn,) = spec.layers[index].attentions, spec.layers[index].ffns
        assert isinstance(attention, GqaAttention | LinearAttention)
        names.append(
            f"{getattr(attention, 'span', 'linear')}/{'moe' if isinstance(ffn, MoeFfn) else 'dense'}"
        )
    return names


def test_gpt_oss_alternates_window_and_full() -> None:
    spec = load_model("gpt-oss-120b")
    assert kinds(spec) == ["window/moe", "full/moe"] * 18
    assert len(spec.layers) == 2
    assert spec.layers[0].attentions[0].span_tokens == 128  # type: ignore[union-attr]


def test_maverick_is_chunked_three_in_four_and_routed_every_second() -> None:
    spec = load_model("llama-4-maverick")
    assert kinds(spec) == ["chunked/dense", "chunked/moe", "chunked/dense", "full/moe"] * 12


def test_deepseek_v3_begins_dense() -> None:
    first, rest = load_model("deepseek-v3").layers
    assert (first.count, rest.count) == (3, 58)
    assert first.ffns == (DenseFfn(18432),)
    assert isinstance(rest.ffns[0], MoeFfn)
    assert rest.ffns[0].n_group == 8


def test_a_longcat_block_has_two_attentions_two_mlps_and_zero_experts() -> None:
    (block,) = load_model("longcat-flash").layers
    assert block.count == 28
    assert [type(it) for it in block.attentions] == [MlaAttention, MlaAttention]
    assert [type(it) for it in block.ffns] == [DenseFfn, DenseFfn, MoeFfn]
    assert block.ffns[2].zero_experts == 256  # type: ignore[union-attr]


def test_step3_is_dense_in_its_first_four_layers_and_the_last() -> None:
    assert [i for i, name in enumerate(kinds(load_model("step-3"))) if name == "full/dense"] == [
        0,
        1,
        2,
        3,
        60,
    ]


def test_qwen35_is_linear_but_for_every_fourth_layer() -> None:
    spec = load_model("qwen3.5-397b-a17b")
    assert kinds(spec) == (["linear/moe"] * 3 + ["full/moe"]) * 15
    linear = spec.layers[0].attentions[0]
    assert isinstance(linear, LinearAttention)
    assert linear.state_bytes == 64 * 128 * 128 * 4 + (2 * 16 * 128 + 64 * 128) * 3 * 2
