"""What a published row does not print, and where it is taken from."""

from __future__ import annotations

import pytest

from simserve.deploy.build import build
from simserve.engines.vllm.options import VllmParams
from simserve.model import load_model
from simserve.validation.published_row import setup_of
from simserve.validation.published_servers import counted_weights, limits, options_of, sglang_memory_share

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

OLDER_SGLANG = {"prompts_within_max_prefill": True}
"""`PrefillAdder.add_one_req` of wheels 0.5.1.post1 and 0.5.6.post2; 0.5.23 has another condition."""


def row(framework: str, version: str, **more: str) -> dict[str, str]:
    return {**ROW, "framework": framework, "framework_version": version, **more}


@pytest.mark.parametrize(
    ("framework", "version", "more", "wanted"),
    [
        ("vLLM", "0.12.0", {}, {"async_scheduling": False}),
        ("vLLM", "0.15.1", {}, {}),
        ("SGLang", "0.5.6.post2", {}, OLDER_SGLANG),
        ("SGLang", "0.5.23", {}, {}),
        # seqs at least 512, tokens = seqs + isl + 1500, no prefix caching
        (
            "vLLM",
            "0.19.0",
            GENERATED,
            {"max_num_seqs": 512, "max_num_batched_tokens": 3036, "enable_prefix_caching": False},
        ),
        ("SGLang", "0.5.1.post1", GENERATED, {"max_prefill_tokens": 2524, **OLDER_SGLANG}),
        (
            "SGLang",
            "0.5.6.post2",
            GENERATED,
            {"max_prefill_tokens": 2524, "enable_mixed_chunk": True} | OLDER_SGLANG,
        ),
    ],
)
def test_settings_by_engine_and_source(framework, version, more, wanted):
    assumed: list[str] = []
    assert options_of(row(framework, version, **more), assumed) == wanted
    assert bool(assumed) == bool(wanted)


@pytest.mark.parametrize(
    ("version", "gib", "tp", "share"),
    [
        ("0.5.1.post1", 80, "2", 0.869),  # 9.5 + 2/2 GiB of 80
        ("0.5.1.post1", 80, "8", 0.831),  # 9.5 + 8/2
        ("0.5.6.post2", 141, "1", 0.907),  # 512 + 1.5 x 8192 + 2 x 256 + 128 MiB = 13.125 GiB
        ("0.5.6.post2", 141, "4", 0.901),  # 512 graphs from 4 GPUs on: 14.0 GiB
        ("0.5.23", 80, "2", None),
    ],
)
def test_older_releases_of_sglang_share_memory_by_their_own_rule(version, gib, tp, share):
    assert sglang_memory_share(row("SGLang", version, tp=tp), gib << 30) == share


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
    # 8.0 GB of weights stay, 95 % of the other 77.9 GB become cache.
    assert (pool.kv_dtype, pool.gpu_memory_utilization) == ("fp8", pytest.approx(0.955, abs=0.001))
    it = build(setup.scenario)
    params = it.pools[0].engine.params
    assert isinstance(params, VllmParams)
    # 64 KiB x 1,152 tokens per request: up to 981 fit beside the weights (the bench says 1,024), and as many
    # are run as have room for their whole answers, so that none is evicted: 72 blocks of 16 tokens each.
    assert 0.99 * it.pools[0].ledger.kv_blocks < params.max_num_seqs * 72 <= it.pools[0].ledger.kv_blocks
    assert params.max_num_scheduled_tokens == 9216  # 1,024 x (1 + 1024/128) by the bench, in steps of 1,024
    assert not params.enable_chunked_prefill
    assert it.pools[0].engine.overhead.capture_sizes[-2:] == (512, 1024)
    result = it.simulate()
    assert result.arrival_ns.tolist() == [0] * 300
    assert any("TensorRT-LLM run as" in note for note in setup.assumed)


def test_a_server_of_tensorrt_llm_has_its_own_defaults():
    setup = setup_of(row("TensorRT-LLM", "1.0.0rc3"))
    (pool,) = build(setup.scenario).pools
    assert isinstance(pool.engine.params, VllmParams)
    assert (pool.engine.params.max_num_seqs, pool.engine.params.max_num_batched_tokens) == (2048, 8192)
    assert pool.engine.overhead.kernels == "trtllm"


@pytest.mark.parametrize(("weights", "gib"), [("bf16", 16.06), ("fp8", 8.03), ("nvfp4", 2.5)])
def test_the_bench_counts_stored_elements(weights, gib):
    """Llama-3.1-8B: 8.03e9 parameters, of which 1.05e9 stay at 16 bit; two 4-bit weights to an element, and
    a scale to every 16: (1.05 + 6.98 x 0.5625) x 0.5 = 2.5e9 bytes."""
    assert counted_weights(load_model("llama-3.1-8b"), weights) == pytest.approx(gib * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("fitting", "prompt", "answer", "wanted"),
    [
        (40, 128, 2048, (64, 2048)),  # the least of both
        (201, 2048, 128, (224, 3584)),  # multiples of 32 and of 256
        (886, 128, 2048, (896, 2048)),
        (886, 1000, 200, (896, 5632)),  # 5,316 tokens: multiples of 512
        (1500, 5000, 500, (1536, 17408)),  # 16,500: multiples of 256, and tokens of 1,024
        (9000, 20000, 2000, (4096, 32768)),  # the most of both
    ],
)
def test_limits_of_trtllm_bench(fitting, prompt, answer, wanted):
    assert limits(fitting, prompt, answer) == wanted


@pytest.mark.parametrize(
    ("gpu", "weights", "kv"),
    [
        ("H200 SXM 141GB", "MXFP4 weights", "bf16"),
        ("B200 180GB", "MXFP4", "fp8"),
        ("B200 180GB", "NVFP4", "fp8"),
    ],
)
def test_the_cache_of_a_recipe_has_its_dtype(gpu, weights, kv):
    it = row(
        "TensorRT-LLM",
        "1.0",
        gpu=gpu,
        weights_precision=weights,
        concurrency="",
        arrival="all requests queued at t=0",
    )
    assert setup_of(it).scenario.pools[0].kv_dtype == kv
