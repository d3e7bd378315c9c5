"""What a checkpoint's own configuration says of its types, and what a deployment makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simserve.errors import ScenarioError
from simserve.model import load_model
from simserve.model.dtypes import WeightTypes, weight_types
from simserve.model.weights import weight_bytes_total

DENSE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
ATTENTION, MLP, ENDS = 3 * (2 * 256 * 256 + 2 * 256 * 128), 3 * 3 * 256 * 1024, 2 * 1000 * 256
NORMS = 3 * 2 * 256 + 256
SELF_ATTN = [f"model.layers.{i}.self_attn.{p}_proj" for i in range(3) for p in "qkvo"]


def compressed(weights: dict, ignore: list[str], **more) -> dict:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignore, **more}


def model(tmp_path: Path, quantization: dict | None, config: dict = DENSE):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | ({"quantization_config": quantization} if quantization else {})))
    return load_model(str(path))


FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}


@pytest.mark.parametrize(
    ("quantization", "attention", "mlp"),
    [
        (None, 2, 2),
        ({"quant_method": "fp8"}, 1, 1),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 16384, 1 + 4 / 16384),
        ({"quant_method": "fp8", "modules_to_not_convert": ["lm_head", *SELF_ATTN]}, 2, 1),
        (compressed(FP8, ["lm_head"]), 1, 1),
        (compressed(FP8, ["lm_head", "re:.*self_attn.*"]), 2, 1),
        (compressed({"num_bits": 4, "type": "int", "group_size": 32}, ["lm_head"]), 0.5625, 0.5625),
        (compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, ["lm_head"]), 1, 1),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16}, ["re:.*mlp.*"]), 0.5625, 2),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.515625, 0.515625),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1, 1),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]}, 2, 0.5625),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1, 1),
        ({"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4"}, 0.5625, 0.5625),
    ],
)
def test_weights_follow_the_quantization_config(tmp_path, quantization, attention, mlp):
    spec = model(tmp_path, quantization)
    dtype = spec.checkpoint.weights_dtype("auto")
    expected = attention * ATTENTION + mlp * MLP + 2 * (ENDS + NORMS)
    assert weight_bytes_total(spec, dtype) == pytest.approx(expected, abs=3)


def test_a_gate_in_a_list_of_kept_modules_is_not_a_gate_projection(tmp_path):
    """`mlp.gate` is a router; as the beginning of `mlp.gate_proj` it means nothing."""
    kept = ["model.layers.0.mlp.gate", "model.layers.0.input_layernorm"]
    spec = model(tmp_path, {"quant_method": "fp8", "modules_to_not_convert": kept})
    assert spec.checkpoint.weights == "fp8"


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "aqlm"}, "aqlm: this method is not priced; known: fp8, "),
        ({"quant_method": "awq", "bits": 3}, "3 bits in groups of 128"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"weight_block_size = \[64, 64\]"),
        (
            {"quant_method": "fp8", "ignored_layers": ["model.layers.0.mlp"]},
            "modules of dense are in bf16 and fp8",
        ),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "quant_algo = W4A8"),
    ],
)
def test_what_has_no_price_is_refused_by_name_unless_a_type_is_given(tmp_path, quantization, words):
    checkpoint = model(tmp_path, quantization).checkpoint
    with pytest.raises(ScenarioError, match=words):
        checkpoint.weights_dtype("auto")
    assert checkpoint.weights_dtype("fp8") == "fp8"


@pytest.mark.parametrize(
    "scheme",
    [
        compressed(FP8, ["lm_head"], kv_cache_scheme={"num_bits": 8, "type": "float"}),
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    ],
)
def test_the_kv_cache_follows_the_checkpoint(tmp_path, scheme):
    checkpoint = model(tmp_path, scheme).checkpoint
    assert checkpoint.kv_dtype("auto") == "fp8"
    assert checkpoint.kv_dtype("bf16") == "bf16"


@pytest.mark.parametrize(
    ("name", "types"),
    [
        # DeepSeek-V3's config: fp8 in blocks of 128 x 128; gpt-oss: MXFP4 experts, all else in 16 bit.
        ("deepseek-v3", "fp8_block"),
        ("deepseek-ai/DeepSeek-R1", "fp8_block"),
        ("gpt-oss-120b", "mxfp4"),
        ("Qwen/Qwen3-32B-FP8", "fp8_block"),
        ("Qwen/Qwen3-32B", "bf16"),
        ("kimi-k2.5", "bf16, routed experts int4_g32"),
    ],
)
def test_published_names_have_the_types_that_they_ship_in(name, types):
    weights = load_model(name).checkpoint.weights
    assert (weights if isinstance(weights, str) else weights.words) == types


def test_a_part_that_is_not_named_keeps_the_checkpoints_type():
    own = load_model("deepseek-v3").checkpoint
    types = weight_types(own.weights_dtype(WeightTypes(routed_experts="nvfp4")))
    assert (types.attention, types.dense, types.shared_experts) == ("fp8_block",) * 3
    assert (types.routed_experts, types.head) == ("nvfp4", "bf16")


def test_each_part_is_stored_in_its_type():
    """GiB of gpt-oss-120b by parameters, 60.7 (vLLM's log of a start with MXFP4 experts)."""
    spec = load_model("gpt-oss-120b")
    assert weight_bytes_total(spec, "mxfp4") / 2**30 == pytest.approx(60.7, abs=0.1)
    parts = ("attention", "dense", "shared_experts", "routed_experts", "head")
    base = weight_bytes_total(spec, "bf16")
    for name in parts:
        saved = base - weight_bytes_total(spec, WeightTypes(**{name: "fp8"}))
        params = {"attention": 36 * (2 * 2880 * 4096 + 2880 * 1024), "head": 201088 * 2880}
        experts = 36 * 128 * 3 * 2880 * 2880
        assert saved == pytest.approx({"routed_experts": experts, **params}.get(name, 0), rel=1e-9, abs=2)


def test_a_mapping_with_an_unknown_type_or_part_is_refused():
    with pytest.raises(ScenarioError, match="unknown weights dtype 'fp9'"):
        weight_types(WeightTypes(dense="fp9"))
