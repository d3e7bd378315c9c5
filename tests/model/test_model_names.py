"""Published names of models: owners, cases, kinds of release, and near misses."""

import pytest

from simserve.errors import ScenarioError
from simserve.model import load_model, preset_names
from simserve.model.dtypes import AUTO, weight_types
from simserve.model.load import published

# Repositories of Hugging Face -> the preset of their architecture.
PUBLISHED = {
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "META-LLAMA/LLAMA-3.1-8B-INSTRUCT": "llama-3.1-8b",
    "Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "unsloth/Meta-Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "somebody/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": "llama-3.1-8b",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": "llama-3.1-8b",
    "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit": "llama-3.1-8b",
    "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4": "llama-3.1-70b",
    "nvidia/Llama-3.1-70B-Instruct-FP8": "llama-3.1-70b",
    "meta-llama/Meta-Llama-3-8B-Instruct": "llama-3-8b",
    "meta-llama/Llama-2-7b-chat-hf": "llama-2-7b",
    "nvidia/Llama-3.3-70B-Instruct-NVFP4": "llama-3.3-70b",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "llama-3.3-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-32B-FP8": "qwen3-32b",
    "Qwen/Qwen3-32B-AWQ": "qwen3-32b",
    "RedHatAI/Qwen3-32B-FP8-dynamic": "qwen3-32b",
    "Qwen/Qwen3-8B-Base": "qwen3-8b",
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": "qwen2.5-7b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": "qwen3-30b-a3b",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3-30b-a3b",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-v3",
    "nvidia/DeepSeek-R1-0528-NVFP4": "deepseek-v3",
    "unsloth/DeepSeek-V3-bf16": "deepseek-v3",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "unsloth/gpt-oss-20b-BF16": "gpt-oss-20b",
    "moonshotai/Kimi-K2-Instruct-0905": "kimi-k2-instruct",
    "nvidia/Kimi-K2.5-NVFP4": "kimi-k2.5",
    "zai-org/GLM-5-FP8": "glm-5",
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": "llama-4-scout",
    "google/gemma-3-27b-it": "gemma-3-27b",
    "google/gemma-3-1b-pt": "gemma-3-1b",
    "RedHatAI/gemma-3-12b-it-FP8-dynamic": "gemma-3-12b",
    "Qwen/Qwen2.5-Coder-32B-Instruct-AWQ": "qwen2.5-32b",
    "Qwen/Qwen2.5-0.5B-Instruct": "qwen2.5-0.5b",
    "Qwen/Qwen3-4B-Instruct-2507": "qwen3-4b",
    "Qwen/Qwen3-0.6B-FP8": "qwen3-0.6b",
    "Qwen/Qwen3-Next-80B-A3B-Thinking": "qwen3-next-80b-a3b",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8": "qwen3-coder-480b-a35b",
    "mistralai/Mistral-Small-24B-Instruct-2501": "mistral-small-24b",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "mistral-small-24b",
    "mistralai/Ministral-8B-Instruct-2410": "ministral-8b",
    "mistralai/Mistral-7B-Instruct-v0.2": "mistral-7b-v0.1",
    "microsoft/phi-4": "phi-4",
    "meta-llama/Llama-3.2-1B-Instruct": "llama-3.2-1b",
    "deepseek-ai/DeepSeek-V2-Lite-Chat": "deepseek-v2-lite",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "qwen2.5-14b",
    "zai-org/GLM-4.6-FP8": "glm-4.5",
    "zai-org/GLM-4.5-Air-FP8": "glm-4.5-air",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": "kimi-linear-48b-a3b",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8": "llama-4-maverick",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_name_finds_its_preset(name: str) -> None:
    assert load_model(name).name == PUBLISHED[name]


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_answers_to_its_name_with_any_owner_and_end(name: str) -> None:
    for shape in ("{}", "acme/{}", "{}-Instruct", "{}-FP8", "acme/{}-instruct-AWQ"):
        assert published(shape.format(name).upper()).preset == name


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Qwen/Qwen3-31B", "qwen3-32b"),
        ("Qwen/Qwen3-32B-Distilled", "qwen3-32b"),
        ("meta-llama/Llama-3.2-90B-Vision-Instruct", "llama-3"),
        ("lama-3.1-70b", "llama-3.1-70b"),
        ("deepseek-ai/DeepSeek-R2", "deepseek-v2"),
    ],
)
def test_a_near_miss_is_suggested_not_taken(name: str, nearest: str) -> None:
    with pytest.raises(
        ScenarioError, match=rf"unknown model '{name}' \(did you mean '{nearest}.*config.json"
    ):
        load_model(name)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("unsloth/Qwen3-8B-GGUF", "GGUF"),
        ("turboderp/Llama-3.1-8B-Instruct-exl2", "EXL2"),
        ("mlx-community/Qwen3-8B-mlx", "MLX"),
    ],
)
def test_formats_without_a_price_are_refused_by_name(name: str, what: str) -> None:
    with pytest.raises(ScenarioError, match=f"{what} has no price here"):
        load_model(name)


@pytest.mark.parametrize(
    ("name", "experts"),
    [("deepseek-ai/DeepSeek-V4-Pro", "mxfp4"), ("nvidia/DeepSeek-V4-Pro-NVFP4", "nvfp4"),
     ("sgl-project/DeepSeek-V4-Pro-FP8", "fp8_block")],
)  # fmt: skip
def test_experts_of_v4_are_in_the_type_of_the_release(name: str, experts: str) -> None:
    """`expert_dtype` of the configurations in the wheel aiconfigurator-core 0.12.0."""
    types = weight_types(load_model(name).checkpoint.weights)
    assert (types.attention, types.shared_experts, types.routed_experts) == (
        "fp8_block",
        "fp8_block",
        experts,
    )


def test_a_release_with_a_longer_context_has_it() -> None:
    assert load_model("Qwen/Qwen3-30B-A3B").max_position_embeddings == 40_960
    assert load_model("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8").max_position_embeddings == 262_144
    assert load_model("Qwen/QwQ-32B").max_position_embeddings == 40_960


def test_nvfp4_releases_keep_what_nvidia_keeps_in_16_bit() -> None:
    """Lists of modules in the releases' hf_quant_config.json and config.json (2026-09)."""
    for name, kept in {
        "nvidia/Qwen3-235B-A22B-NVFP4": ["lm_head"],
        "nvidia/Kimi-K2.5-NVFP4": ["lm_head", "*self_attn*"],
        "nvidia/DeepSeek-R1-0528-NVFP4-v2": ["lm_head", "*self_attn*"],
        "nvidia/Kimi-K2.6-NVFP4": ["lm_head", "*self_attn*", "*shared_experts*", "*layers.0.mlp*"],
    }.items():
        config = published(name).changes["quantization_config"]
        assert config["ignore"] == kept
        assert config["kv_cache_quant_algo"] == "FP8"
    assert published("Qwen3-235B-A22B-NVFP4") == published("nvidia/Qwen3-235B-A22B-NVFP4")


# What the releases' own config.json says: types of matrices (of routed experts, where they differ), KV cache.
TYPES = {
    "Qwen/Qwen3-32B": ("bf16", "bf16"),
    "Qwen/Qwen3-32B-FP8": ("fp8_block", "bf16"),
    "qwen3-32b-fp8": ("fp8_block", "bf16"),
    "RedHatAI/Qwen3-32B-FP8-dynamic": ("fp8", "bf16"),
    "Qwen/Qwen3-32B-AWQ": ("int4", "bf16"),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": ("int8", "bf16"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": ("int4", "bf16"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": ("int8", "bf16"),
    "nvidia/Llama-3.1-70B-Instruct-FP8": ("fp8", "fp8"),
    "nvidia/Llama-3.3-70B-Instruct-NVFP4": ("nvfp4", "fp8"),
    "amd/Llama-3.1-70B-Instruct-FP8-KV": ("fp8", "fp8"),
    "deepseek-ai/DeepSeek-R1": ("fp8_block", "bf16"),
    "unsloth/DeepSeek-V3-bf16": ("bf16", "bf16"),
    "openai/gpt-oss-120b": ("mxfp4", "bf16"),
    "unsloth/gpt-oss-20b-BF16": ("bf16", "bf16"),
    "zai-org/GLM-5-FP8": ("fp8_block", "bf16"),
    "moonshotai/Kimi-K2-Instruct": ("fp8_block", "bf16"),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_release_comes_in_its_own_types(name: str) -> None:
    checkpoint = load_model(name).checkpoint
    assert (checkpoint.weights_dtype(AUTO), checkpoint.kv_dtype(AUTO)) == TYPES[name]


def test_fp8_releases_of_llama_4_keep_attention_in_16_bit() -> None:
    for name in (
        "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
        "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8",
    ):
        types = weight_types(load_model(name).checkpoint.weights_dtype(AUTO))
        assert (types.attention, types.routed_experts, types.shared_experts) == ("bf16", "fp8", "fp8")
