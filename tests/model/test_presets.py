"""Every preset against published figures: parameter counts, KV bytes, layer groups."""

import pytest

from simserve.model import active_params, kv_bytes_per_token, load_model, preset_names, total_params
from simserve.model.layers import DenseFfn, GqaAttention, LinearAttention, MlaAttention, MoeFfn
from simserve.model.parts import layer_parts
from simserve.model.spec import ModelSpec

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
    "qwen3.5-122b-a10b": (122.0, 9.8, 2 * 12 * 2 * 256 * 2),
    "qwen3.5-35b-a3b": (35.0, 3.45, 2 * 10 * 2 * 256 * 2),
    "qwen3-next-80b-a3b": (80.0, 3.87, 2 * 12 * 2 * 256 * 2),
    "kimi-linear-48b-a3b": (49.1, 3.48, 7 * 576 * 2),
    "qwen3-coder-480b-a35b": (480.0, 35.4, 2 * 62 * 8 * 128 * 2),
    "deepseek-v2-lite": (15.7, 2.66, 27 * 576 * 2),
    "gemma-3-27b": (27.0, 27.0, 2 * 62 * 16 * 128 * 2),
    "phi-4": (14.66, 14.66, 2 * 40 * 10 * 128 * 2),
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
    "mixtral-8x22b": 140_620_634_112,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": 140_630_071_296,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-small-24b": 23_572_403_200,
    "ministral-8b": 8_019_808_256,
    "phi-4": 14_659_507_200,
    "deepseek-v2-lite": 15_706_484_224,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-120b": 116_829_156_672,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "granite-3.1-2b": 2_533_531_648,
    "granite-3.1-8b": 8_170_848_256,
}

# The same of models with an image encoder, of Gemma 2 and Nemotron, where some norms and biases are left out.
WITH_ENCODER = {
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-4b": 4_300_079_472,
    "gemma-3-12b": 12_187_325_040,
    "gemma-3-27b": 27_432_406_640,
    "kimi-vl-a3b": 16_407_657_776,
    "llama-4-scout": 108_641_793_536,
    "llama-4-maverick": 401_583_781_376,
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": 24_011_361_280,
    "nemotron-mini-4b": 4_191_473_664,
    "pixtral-12b": 12_682_739_712,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-72b": 73_410_777_344,
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


@pytest.mark.parametrize("name", WITH_ENCODER)
def test_totals_with_the_image_encoder_are_near_the_checkpoint(name: str) -> None:
    spec = load_model(name)
    tower = spec.vision.params + spec.vision.projector_params if spec.vision else 0
    assert total_params(spec) + tower == pytest.approx(WITH_ENCODER[name], rel=4e-4)


@pytest.mark.parametrize(("name", "total", "active"), [("minimax-m2.5", 229, 10), ("glm-5", 744, 40)])
def test_makers_that_leave_embeddings_out_of_the_active(name: str, total: int, active: int) -> None:
    spec = load_model(name)
    ends = 2 * spec.vocab_size * spec.hidden_size
    assert round(total_params(spec) / 1e9) == total
    assert round((active_params(spec) - ends) / 1e9) == active


# Checkpoints of the text models: 1b as published; the others less the vision tower and its projector.
GEMMA = {"1b": 999_885_952, "4b": 3_880_263_168, "12b": 11_766_034_176, "27b": 27_009_346_304}


@pytest.mark.parametrize("size", GEMMA)
def test_gemma_3_lacks_only_two_of_the_four_norms_of_a_layer(size: str) -> None:
    spec = load_model(f"gemma-3-{size}")
    assert total_params(spec) == GEMMA[size] - spec.num_layers * 2 * spec.hidden_size


@pytest.mark.parametrize(("size", "layers", "window"), [("1b", 26, 512), ("4b", 34, 1024), ("27b", 62, 1024)])
def test_gemma_3_slides_in_five_of_six_layers(size: str, layers: int, window: int) -> None:
    spec = load_model(f"google/gemma-3-{size}-it")
    assert kinds(spec) == ((["window/dense"] * 5 + ["full/dense"]) * 11)[:layers]
    assert spec.layers[0].attentions[0].span_tokens == window  # type: ignore[union-attr]


# Hugging Face totals of the checkpoints: their prediction layer (an MoE layer, a joining matrix, an embedding
# and a head) is no part of ours.
@pytest.mark.parametrize(("name", "with_prediction"), [("glm-4.5", 358.34e9), ("glm-4.5-air", 110.47e9)])
def test_glm_and_its_prediction_layer_are_the_checkpoint(name: str, with_prediction: float) -> None:
    spec = load_model(name)
    hidden, last = spec.hidden_size, spec.layers[-1]
    layer = sum(part.params for part in layer_parts(last, hidden))
    prediction = layer + 2 * hidden**2 + 2 * spec.vocab_size * hidden
    assert total_params(spec) + prediction == pytest.approx(with_prediction, rel=1e-4)


def test_kimi_linear_lacks_only_the_biases_of_its_routers() -> None:
    spec = load_model("moonshotai/Kimi-Linear-48B-A3B-Instruct")
    assert total_params(spec) == 49_122_681_728 - 26 * 256
    assert [type(spec.layers[i].attentions[0]) for i in spec.order[:4]] == [LinearAttention] * 3 + [
        MlaAttention
    ]
    assert isinstance(spec.layers[spec.order[26]].attentions[0], MlaAttention)
    delta = spec.layers[0].attentions[0]
    assert isinstance(delta, LinearAttention)
    assert delta.state_bytes == 32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2


def test_qwen3_next_is_linear_but_for_every_fourth_layer() -> None:
    spec = load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert kinds(spec) == (["linear/moe"] * 3 + ["full/moe"]) * 12


def test_mistral_7b_changed_between_its_versions() -> None:
    first, second, third = (load_model(f"mistralai/Mistral-7B-Instruct-v0.{n}") for n in (1, 2, 3))
    assert [spec.layers[0].attentions[0].span_tokens for spec in (first, second, third)] == [4096, 0, 0]  # type: ignore[union-attr]
    assert [spec.vocab_size for spec in (first, second, third)] == [32_000, 32_000, 32_768]


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
