"""KV cache memory that engines logged at start (llm-d-planner, sweeps on one H100 of 79.19 GiB, 0.95)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simserve.engines.presets import memory_rules
from simserve.errors import ScenarioError
from simserve.hardware import load_gpu
from simserve.model import Parallelism, load_model, memory_ledger
from simserve.model.memory import raw_ledger
from simserve.model.memory_lines import MemorySettings
from simserve.model.weights import weight_bytes_per_stage
from simserve.units import GIB


def ledger(model: str, engine: str, tp: int, dtype: str, share: float = 0.95):
    return memory_ledger(
        MemorySettings(
            load_model(model),
            load_gpu("h100_sxm"),
            Parallelism(tp=tp),
            weights_dtype=dtype,
            kv_dtype="bf16",
            block_size=16,
            gpu_memory_utilization=share,
            max_num_batched_tokens=8192,
            max_num_seqs=1024,
            rules=memory_rules(engine),
        )
    )


@pytest.mark.parametrize(
    ("model", "engine", "tp", "dtype", "kv_gib"),
    [
        ("llama-3.1-8b", "vllm-0.19", 1, "bf16", 58.11),
        ("llama-3.1-8b", "vllm-0.19", 1, "fp32", 42.80),
        ("llama-3.1-8b", "vllm-0.19", 1, "fp8", 64.61),
        ("llama-3.1-8b", "vllm-0.19", 2, "bf16", 63.76),
        ("llama-3.1-8b", "vllm-0.19", 4, "bf16", 67.44),
        ("qwen2.5-7b", "vllm-0.19", 1, "bf16", 58.53),
        ("qwen2.5-7b", "vllm-0.19", 4, "bf16", 67.34),
        ("llama-3.3-70b", "vllm-0.19", 2, "fp8", 37.28),
        ("llama-3.3-70b", "vllm-0.19", 4, "int8", 54.08),
        ("mixtral-8x7b", "vllm-0.19", 2, "bf16", 28.44),
        ("qwen3-30b-a3b", "vllm-0.19", 4, "bf16", 56.17),
        ("qwen3-14b", "vllm-0.19", 1, "bf16", 45.23),
        ("qwen3-14b", "vllm-0.15", 1, "bf16", 41.94),
    ],
)
def test_the_kv_cache_is_what_vllm_logged(model, engine, tp, dtype, kv_gib):
    assert ledger(model, engine, tp, dtype).kv_bytes / GIB == pytest.approx(kv_gib, rel=0.02)


@pytest.mark.parametrize(
    ("model", "engine", "peak_gib"),
    [
        ("llama-3.1-8b", "vllm-0.19", 1.89),
        ("qwen2.5-7b", "vllm-0.19", 2.21),
        ("phi-4", "vllm-0.19", 1.52),
        ("gemma-2-9b", "vllm-0.19", 3.65),
        ("gemma-3-27b", "vllm-0.19", 3.99),  # with 8,192 tokens of images
        ("qwen3-30b-a3b", "vllm-0.19", 2.68),  # with the buffers of its experts
        ("qwen3-14b", "vllm-0.15", 5.64),
        ("llama-3.1-8b", "vllm-0.15", 4.76),
    ],
)
def test_the_sampler_decides_the_activation_peak(model, engine, peak_gib):
    """As logged; those of two decimals are within one of the last."""
    line = ledger(model, engine, 1, "bf16").line("activation peak")
    assert line.bytes / GIB == pytest.approx(peak_gib, abs=0.015)


@pytest.mark.parametrize(("tp", "low", "high"), [(1, 0.24, 0.27), (2, 2.06, 2.11), (4, 2.06, 2.21)])
def test_memory_outside_torch_is_what_h100s_logged(tp, low, high):
    """vLLM 0.19, all models of the sweep."""
    assert low <= ledger("llama-3.1-8b", "vllm-0.19", tp, "bf16").line("other").bytes / GIB <= high


@pytest.mark.parametrize(("kernels", "gib"), [("plain", 60.7), ("triton", 64.38), ("marlin", 65.97)])
def test_gpt_oss_120b_is_as_large_as_its_kernels_hold_it(kernels, gib):
    """By parameters, and as logged: vllm issues 33155 (0.14.1) and 23278 (0.10.1)."""
    spec = load_model("gpt-oss-120b")
    (weights,) = weight_bytes_per_stage(spec, Parallelism(), "mxfp4", mxfp4=kernels)
    assert weights.total / GIB == pytest.approx(gib, abs=0.1)


@pytest.mark.parametrize(
    ("model", "plain", "padded"), [("gpt-oss-120b", 56.7, 61.9), ("gpt-oss-20b", 9.5, 10.3)]
)
def test_experts_in_mxfp4_are_held_padded(model, plain, padded):
    """vLLM's Marlin and TensorRT-LLM kernels: 2880 x 2880 becomes 3072 x 2944 (vllm issues 23278, 27508)."""
    for held, expected in (("plain", plain), ("marlin", padded)):
        (weights,) = weight_bytes_per_stage(load_model(model), Parallelism(), "mxfp4", mxfp4=held)
        assert weights.routed_expert / GIB == pytest.approx(expected, rel=0.01)


def test_gpt_oss_120b_leaves_no_room_at_1024_slots():
    """vLLM 0.10.1, Marlin, 0.90: 65.97 GiB of weights, -2.14 GiB left."""
    with pytest.raises(ScenarioError, match="no room for a KV cache"):
        ledger("gpt-oss-120b", "vllm-0.15", 1, "mxfp4", 0.90)


def test_what_lies_outside_the_share_must_fit_beside_it():
    """vLLM 0.19, one H100: 0.51 GiB before the engine looks, 0.91 GiB of graphs; 0.01 of 79 GiB is 0.79."""
    assert ledger("llama-3.1-8b", "vllm-0.19", 1, "bf16", 0.95).kv_blocks > 0
    with pytest.raises(ScenarioError, match=r"CUDA context 0.51, CUDA graphs 0.91.*at most 0.98 would leave"):
        ledger("llama-3.1-8b", "vllm-0.19", 1, "bf16", 0.99)
    assert ledger("llama-3.1-8b", "vllm-0.19", 1, "bf16", 0.98).kv_blocks > 0


def test_marlin_repeats_the_scales_of_blocks_where_a_gpu_has_no_fp8():
    """MiniMax M2.7 on four A100 (vLLM 0.22.1): a 16-bit scale per 128 inputs and output, 0.8 GiB more."""
    spec, four = load_model("minimax-m2.5"), Parallelism(tp=4)
    held = [
        weight_bytes_per_stage(spec, four, "fp8_block", marlin_fp8=it)[0].routed_expert
        for it in (False, True)
    ]
    assert held[1] / held[0] == pytest.approx((1 + 2 / 128) / (1 + 4 / 128**2), rel=1e-6)
    assert (held[1] - held[0]) / GIB == pytest.approx(0.8, abs=0.02)
    settings = MemorySettings(
        spec, load_gpu("a100_sxm"), four, "fp8_block", "bf16", 16, 0.9, 2048, 256, memory_rules("vllm-0.33")
    )
    assert raw_ledger(settings).line("routed expert weights").bytes == held[1]
    assert (
        raw_ledger(replace(settings, gpu=load_gpu("h100_sxm"))).line("routed expert weights").bytes == held[0]
    )


def test_experts_keep_buffers_by_kernel():
    """Qwen3-30B-A3B: 8,192 tokens x 8 picks x (2048 + 2048) x 2 B, 0.5 GiB; kernels of a B200 keep none."""
    kept = 8192 * 8 * (2048 + 2048) * 2
    spec, rules = load_model("qwen3-30b-a3b"), memory_rules("vllm-0.19")
    settings = MemorySettings(
        spec, load_gpu("h100_sxm"), Parallelism(), "fp8_block", "bf16", 16, 0.9, 8192, 1024, rules
    )
    peak = raw_ledger(settings).line("activation peak").bytes
    without = replace(settings, rules=replace(rules, keeps_expert_buffers=False))
    assert peak - raw_ledger(without).line("activation peak").bytes == kept
    b200 = raw_ledger(replace(settings, gpu=load_gpu("b200_sxm"))).line("activation peak").bytes
    assert b200 < peak - kept + 16 * 151_936 * 4 + 1  # it has 16 multiprocessors more
