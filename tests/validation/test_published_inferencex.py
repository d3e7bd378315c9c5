"""What the scripts of InferenceX set, by hand from the scripts: benchmarks/single_node/<model>_<gpu>.sh."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.deploy.build import build
from simserve.validation.published_row import setup_of

ROW = {
    "row_id": "x-1",
    "simulatable": "yes",
    "mode": "agg",
    "framework": "vLLM",
    "source_title": "silicon_sample.csv (origin: InferenceMAX/InferenceX dump)",
    "isl": "8192",
    "osl": "1024",
    "concurrency": "64",
    "arrival": "closed loop",
}
GPT_OSS = {"model": "openai/gpt-oss-120b", "framework_version": "0.18.0", "weights_precision": "fp4"}
MINIMAX = {"model": "MiniMaxAI/MiniMax-M2.5", "weights_precision": "fp8"}


def settings(row: dict[str, str]) -> tuple[Any, Any, tuple[str, ...]]:
    setup = setup_of({**ROW, **row})
    (pool,) = setup.scenario.pools
    return pool, build(setup.scenario).pools[0].engine, setup.assumed


@pytest.mark.parametrize(("gpu", "tp"), [("H100 SXM 80GB", "2"), ("H200 SXM 141GB", "4")])
def test_gpt_oss_runs_marlin_on_hopper(gpu: str, tp: str) -> None:
    """VLLM_MXFP4_USE_MARLIN=1, --max-num-seqs $CONC, max-num-batched-tokens 8192, no prefix caching."""
    pool, engine, assumed = settings({**GPT_OSS, "gpu": gpu, "tp": tp})
    assert pool.moe_backend == "marlin"
    assert (engine.params.max_num_seqs, engine.params.max_num_batched_tokens) == (64, 8192)
    assert not engine.params.enable_prefix_caching
    assert any("InferenceX" in line for line in assumed)


def test_minimax_has_an_8_bit_cache_on_b200_and_more_memory_on_h200() -> None:
    """--kv-cache-dtype fp8, --max-num-batched-tokens 2 x ISL; --gpu-memory-utilization 0.95."""
    pool, engine, assumed = settings(
        {**MINIMAX, "framework_version": "0.19.0", "gpu": "B200 180GB", "tp": "2"}
    )
    assert (pool.kv_dtype, engine.params.max_num_batched_tokens) == ("fp8", 16384)
    assert pool.weights_dtype == "fp8_block", "its config.json: weight_block_size [128, 128]"
    assert not any("16 bit" in line for line in assumed)
    pool, engine, _ = settings({**MINIMAX, "framework_version": "0.16.0", "gpu": "H200 SXM 141GB", "tp": "4"})
    assert (pool.gpu_memory_utilization, pool.kv_dtype) == (0.95, "bf16")
    assert engine.params.enable_prefix_caching


def test_rows_of_others_keep_the_defaults() -> None:
    pool, engine, _ = settings({**GPT_OSS, "gpu": "H200 SXM 141GB", "tp": "1", "source_title": "elsewhere"})
    assert (pool.moe_backend, engine.params.max_num_seqs) == (None, 1024)


def test_clients_of_vllm_see_what_was_fitted_unless_told_otherwise() -> None:
    _, engine, assumed = settings({**GPT_OSS, "gpu": "H200 SXM 141GB", "tp": "1"})
    assert engine.overhead.client_us == pytest.approx(7427.6)
    assert any("vllm-0.15.yaml" in line for line in assumed)
    plain = setup_of({**ROW, **GPT_OSS, "gpu": "H200 SXM 141GB", "tp": "1"}, overhead="vllm")
    assert build(plain.scenario).pools[0].engine.overhead.client_us == 0
