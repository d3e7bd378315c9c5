"""What a published row does not print, and where it is taken from."""

from __future__ import annotations

import pytest

from simserve.policy.vllm.params import VllmParams
from simserve.scenario import build
from simserve.validate.published_flags import options_of
from simserve.validate.published_row import setup_of

ROW = {
    "row_id": "x-1",
    "simulatable": "yes",
    "mode": "agg",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "H100 SXM 80GB",
    "weights_precision": "bf16",
    "tp": "1",
    "isl": "1024",
    "osl": "128",
    "concurrency": "16",
    "arrival": "closed loop",
}
GENERATED = {"source_title": "silicon_sample.csv (origin: NVIDIA aic-auto-gap-analysis runs)"}


def row(framework: str, version: str, **more: str) -> dict[str, str]:
    return {**ROW, "framework": framework, "framework_version": version, **more}


@pytest.mark.parametrize(
    ("framework", "version", "more", "wanted"),
    [
        ("vLLM", "0.12.0", {}, {"async_scheduling": False}),
        ("vLLM", "0.15.1", {}, {}),
        ("SGLang", "0.5.6.post2", {}, {}),
        # seqs at least 512, tokens = seqs + isl + 1500, no prefix caching
        (
            "vLLM",
            "0.19.0",
            GENERATED,
            {"max_num_seqs": 512, "max_num_batched_tokens": 3036, "enable_prefix_caching": False},
        ),
        ("SGLang", "0.5.1.post1", GENERATED, {"max_prefill_tokens": 2524}),
        ("SGLang", "0.5.6.post2", GENERATED, {"max_prefill_tokens": 2524, "enable_mixed_chunk": True}),
    ],
)
def test_settings_by_engine_and_source(framework, version, more, wanted):
    assumed: list[str] = []
    assert options_of(row(framework, version, **more), assumed) == wanted
    assert bool(assumed) == bool(wanted)


def test_a_table_of_offline_throughput_queues_everything_at_the_start():
    trtllm = row(
        "TensorRT-LLM",
        "1.0 (PyTorch backend)",
        concurrency="",
        arrival="all requests queued at t=0",
        num_requests="300",
        weights_precision="FP8",
        scheduler_settings="in-flight batching; kv_cache_free_gpu_mem_fraction 0.95 (0.90 on OOM)",
    )
    setup = setup_of(trtllm)
    pool = setup.scenario.pools[0]
    assert (pool.kv_dtype, pool.gpu_memory_utilization) == ("fp8", 0.95)
    it = build(setup.scenario)
    params = it.pools[0].engine.params
    assert isinstance(params, VllmParams)
    assert (params.max_num_seqs, params.max_num_batched_tokens) == (2048, 8192)
    result = it.simulate()
    assert result.arrival_ns.tolist() == [0] * 300
    assert any("TensorRT-LLM run as" in note for note in setup.assumed)
