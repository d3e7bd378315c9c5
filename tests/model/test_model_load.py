"""Names, files, and what a configuration must not hide."""

import json
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ScenarioError
from simserve.model import kv_bytes_per_token, load_model
from simserve.model.layers import GqaAttention

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**TINY, **changes}))
    return path


@pytest.mark.parametrize(
    ("given", "preset"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2-instruct"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
    ],
)
def test_hugging_face_names_find_their_preset(given: str, preset: str) -> None:
    assert load_model(given).name == preset


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"unknown model 'lama-3.1-70b'.*did you mean 'llama-3.1-70b'"):
        load_model("lama-3.1-70b")


def test_a_users_file_and_its_folder_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, _comment="mine", torch_dtype="float16", bos_token_id=1)
    assert load_model(str(path)) == load_model(str(tmp_path))
    assert kv_bytes_per_token(load_model(str(path))) == 2 * 4 * 2 * 16 * 2


def test_byte_order_mark_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(TINY).encode())
    assert load_model(str(path)).num_layers == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [4, 128]}, "'compress_ratios' .*not understood"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers = 2.5, allowed: a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"vocab_size": 0}, "vocab_size = 0, allowed: a whole number, 1 or more"),
        ({"attention_bias": "yes"}, "attention_bias = 'yes', allowed: true or false"),
        ({"layer_types": ["full_attention"] * 3}, "a list of 4 items"),
        ({"layer_types": ["full_attention", "slide"] * 2}, "layer_types = 'slide', allowed: one of"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        ({"model_type": "mamba", "architectures": []}, "architecture mamba is not supported"),
        ({"model_type": "deepseek_v33", "architectures": []}, "did you mean 'deepseek_v"),
        ({"model_type": None, "architectures": None}, "neither 'model_type' nor 'architectures'"),
    ],
)
def test_what_would_change_the_maths_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(ScenarioError, match=message):
        load_model(str(path))


def test_missing_file_and_broken_json(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="does not exist"):
        load_model(str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ScenarioError, match="is not JSON"):
        load_model(str(tmp_path / "bad.json"))


def spans(path: Path) -> list[str]:
    spec = load_model(str(path))
    attentions = [spec.layers[i].attentions[0] for i in spec.order]
    return [it.span for it in attentions if isinstance(it, GqaAttention)]


def test_sliding_windows_hold_where_the_configuration_says(tmp_path: Path) -> None:
    assert spans(write(tmp_path, sliding_window=8)) == ["window"] * 4
    assert spans(write(tmp_path, sliding_window=8, use_sliding_window=False)) == ["full"] * 4
    qwen = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    assert spans(write(tmp_path, sliding_window=8, use_sliding_window=True, max_window_layers=3, **qwen)) == [
        "full"
    ] * 3 + ["window"]
