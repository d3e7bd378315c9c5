"""GLM-4.5's kind of model, and the stand-in for DeepSeek-V3 with grouped-query attention."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simserve.model import active_params, kv_bytes_per_token, load_model, total_params
from simserve.paths import data_dir

GLM_45 = {  # figures of the published configuration of GLM-4.5
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "attention_bias": True,
    "first_k_dense_replace": 3,
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 92,
    "num_key_value_heads": 8,
    "topk_group": 1,
    "use_qk_norm": True,
    "vocab_size": 151552,
}


def test_glm_45_has_its_published_size(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GLM_45))
    spec = load_model(str(path))
    assert total_params(spec) == pytest.approx(355e9, rel=0.01)  # "355B total, 32B active"
    assert active_params(spec) == pytest.approx(32e9, rel=0.06)  # embeddings and head counted
    assert kv_bytes_per_token(spec) == 92 * 2 * 8 * 128 * 2


def test_the_gqa_stand_in_is_as_large_as_deepseek_v3() -> None:
    stand_in = load_model(str(data_dir("scenarios") / "models" / "deepseek-v3-gqa8.json"))
    original = load_model("deepseek-v3")
    assert total_params(stand_in) == pytest.approx(total_params(original), rel=0.001)
    assert active_params(stand_in) == pytest.approx(active_params(original), rel=0.01)
    assert kv_bytes_per_token(stand_in) == 61 * 2 * 8 * 128 * 2
