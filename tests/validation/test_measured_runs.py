"""Measured runs as files: lengths of failed requests, shared prompts, metrics, names."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from simserve.errors import ScenarioError, TraceError
from simserve.validation.measured import latency_metrics
from simserve.validation.measured_replay import engine_preset_of
from simserve.validation.measured_runs import dtype, gpu_name, model_preset, read_runs

HEADER = "stage_index,arrival_s,input_tokens,output_tokens_requested,ttft_s,e2e_s,prompt_id_inferred,error\n"
FACTS = (
    "experiment_id,stage_index,overloaded,system_prompt_tokens,prompts_per_group\n"
    "one,-1,False,32,2\none,0,False,32,2\n"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "experiments.csv").write_text(FACTS)
    rows = [
        "0,5.0,64,10,0.1,1.0,0,0",
        "0,5.5,80,10,0.1,1.0,1,0",
        "0,6.0,64,10,0.1,1.0,2,0",
        "0,7.0,,10,,,1,1",
    ]
    with gzip.open(tmp_path / "requests_one.csv.gz", "wt") as file:
        file.write(HEADER + "\n".join(rows) + "\n")
    return tmp_path


def test_a_failed_request_has_the_length_of_its_prompt_elsewhere(folder):
    (run,) = read_runs(folder)
    assert run.prompt_tokens.tolist() == [64, 80, 64, 80]
    assert run.arrival_ns.tolist() == [0, 500_000_000, 1_000_000_000, 2_000_000_000]
    assert run.failed.tolist() == [False, False, False, True]


def test_prompts_share_their_own_blocks_and_their_groups_system_prompt(folder):
    (run,) = read_runs(folder)
    trace = run.trace(16)
    assert trace.block_ids is not None
    assert trace.block_offsets is not None
    first, second, third, again = np.split(trace.block_ids, trace.block_offsets[1:-1])
    assert second.tolist() == again.tolist()
    assert first[:2].tolist() == second[:2].tolist()  # 32 tokens of system prompt, one group
    assert first[2] != second[2]
    assert not set(first) & set(third)  # another group


def test_a_missing_column_is_named(folder):
    with gzip.open(folder / "requests_one.csv.gz", "wt") as file:
        file.write(HEADER.replace(",ttft_s", ""))
    with pytest.raises(TraceError, match="ttft_s"):
        read_runs(folder)


def test_an_unknown_experiment_is_named(folder):
    with pytest.raises(TraceError, match="two"):
        read_runs(folder, ["two"])


def test_metrics_by_hand():
    found = latency_metrics(
        np.array([0, 1_000_000_000]), np.array([11, 21]), np.array([0.5, 0.1]), np.array([1.5, 2.1])
    )
    assert found["ttft_mean"] == pytest.approx(0.3)
    assert found["ttft_p50"] == pytest.approx(0.3)
    assert found["tpot_mean"] == pytest.approx(0.1)
    assert found["e2e_p99"] == pytest.approx(1.5 + 0.99 * 0.6)
    assert found["requests_per_s"] == pytest.approx(2 / 3.1)


@pytest.mark.parametrize(
    ("published", "preset"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "llama-4-scout"),
    ],
)
def test_published_model_names(published, preset):
    assert model_preset(published) == preset


def test_other_names():
    assert gpu_name("H100-SXM-80GB") == "h100_sxm"
    assert gpu_name("RTX PRO 6000 Blackwell 96GB") == "rtx_pro_6000"
    assert dtype("FP16/BF16 (unquantised)") == "bf16"
    assert engine_preset_of("vLLM 0.15.1 (V1, with tracing)") == "vllm-0.15"
    with pytest.raises(ScenarioError, match="Phi-9"):
        model_preset("acme/Phi-9")
