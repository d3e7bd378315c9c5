"""Names in a scenario: GPUs, engines and models as people write them."""

from pathlib import Path

import pytest

from simserve.deploy.build import build
from simserve.deploy.manifest import manifest_of, resolved_yaml
from simserve.engines.presets import PRESETS, engine_called
from simserve.errors import ScenarioError
from simserve.scenario.load import LoadedScenario, changed, load_scenario

HERE = Path("scenarios") / "demo.yaml"


def demo(*options: str) -> LoadedScenario:
    return load_scenario(HERE, options)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("vllm", "vllm-0.33"),
        ("vLLM", "vllm-0.33"),
        ("vllm==0.33", "vllm-0.33"),
        ("vllm-0.33.0", "vllm-0.33"),
        ("vLLM v0.33.0", "vllm-0.33"),
        ("vllm@0.19", "vllm-0.19"),
        ("vllm-0.15.1", "vllm-0.15"),
        ("sglang", "sglang-0.5.23"),
        ("sglang==0.5.23", "sglang-0.5.23"),
        ("SGLang 0.5", "sglang-0.5.23"),
        ("Orca", "orca"),
    ],
)
def test_an_engine_is_found_by_name_and_version(written: str, meant: str) -> None:
    assert engine_called(written) == meant


@pytest.mark.parametrize("written", ["vllm-0.3", "vllm-0.34", "vllm==0.15.0", "vllm-0.33.1", "sglang-0.5.2"])
def test_another_version_is_refused_with_those_that_are_known(written: str) -> None:
    with pytest.raises(ScenarioError, match=rf"unknown engine '{written}'.*known"):
        engine_called(written)


def test_tensorrt_llm_is_refused_with_what_there_is_of_it() -> None:
    for name in ("trtllm", "TensorRT-LLM", "tensorrt_llm==1.2"):
        with pytest.raises(ScenarioError, match="scheduler is not modelled"):
            engine_called(name)


def test_every_preset_answers_to_its_release() -> None:
    for preset in PRESETS.values():
        if preset.release:
            assert engine_called(f"{preset.policy}=={preset.release}") == preset.name


def test_the_scenario_holds_our_names_of_gpus_and_engines() -> None:
    it = demo("pools.0.gpu=NVIDIA H200", "engine=vllm", "pools.0.engine.preset=sglang==0.5.23")
    assert it.scenario.pools[0].gpu == "h200_sxm"
    assert it.scenario.engine.preset == "vllm-0.33"
    assert it.scenario.pools[0].engine.preset == "sglang-0.5.23"
    text = resolved_yaml(build(it))
    assert "gpu: h200_sxm" in text
    assert "preset: sglang-0.5.23" in text
    assert "given as NVIDIA H200" in text


def test_the_resolved_scenario_names_the_preset_and_gives_the_same_again(tmp_path: Path) -> None:
    once = build(demo("model=meta-llama/Llama-3.1-8B-Instruct", "pools.0.gpu=NVIDIA H200"))
    text = resolved_yaml(once)
    assert "model: meta-llama/Llama-3.1-8B-Instruct # preset llama-3.1-8b" in " ".join(text.split())
    path = tmp_path / "again.yaml"
    path.write_text(text)
    again = manifest_of(build(load_scenario(path)), "")
    assert again["pools"] == manifest_of(once, "")["pools"]
    assert again["model"]["called"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert "called" not in manifest_of(build(demo()), "")["model"]


def test_a_change_of_a_study_is_named_alike() -> None:
    it = changed(demo(), {"pools.0.gpu": "L40S"})
    assert it.scenario.pools[0].gpu == "l40s"


def test_an_unclear_gpu_is_asked_back_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(HERE.read_text().replace("gpu: h100_sxm", "gpu: A100"))
    line = path.read_text().splitlines().index("  - {name: h100, gpu: A100, replicas: 1, tp: 1}") + 1
    with pytest.raises(
        ScenarioError, match=rf"mine.yaml:{line}: pools\[0\].gpu: GPU 'A100' may be a100_pcie"
    ):
        load_scenario(path)


def test_prices_are_found_by_any_name_but_only_once() -> None:
    it = demo("sweep={over: {pools.0.tp: [1]}, prices: {NVIDIA H200: 3}}")
    assert it.scenario.sweep is not None
    assert it.scenario.sweep.prices == {"h200_sxm": 3}
    with pytest.raises(ScenarioError, match="'H200' is h200_sxm, which has a price already"):
        demo("size={catalogue: {h200_sxm: {price_per_gpu_hour: 3}, H200: {price_per_gpu_hour: 2}}}")


def test_a_quantised_release_is_served_in_its_types_unless_a_pool_says_otherwise() -> None:
    own = manifest_of(build(demo("model=nvidia/Llama-3.1-8B-Instruct-FP8")), "")["pools"][0]
    assert (own["weights_dtype"], own["kv_dtype"]) == ("fp8", "fp8")
    told = ("model=nvidia/Llama-3.1-8B-Instruct-FP8", "pools.0.weights_dtype=bf16", "pools.0.kv_dtype=bf16")
    other = manifest_of(build(demo(*told)), "")["pools"][0]
    assert (other["weights_dtype"], other["kv_dtype"]) == ("bf16", "bf16")
