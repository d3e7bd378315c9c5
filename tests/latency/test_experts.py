"""Routed experts and the exchange of tokens: exact where measured, and judged on figures from elsewhere."""

import numpy as np
import pandas as pd
import pytest
from extra_profiles import needs_extra, read_extra

from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.errors import ScenarioError
from simserve.hardware import load_gpu
from simserve.latency import compile_step_latency, shipped_profiles
from simserve.latency.compile import setting_of
from simserve.latency.kernels.exchange import ExpertExchange
from simserve.latency.kernels.expert_rows import Experts
from simserve.latency.kernels.experts import RoutedExperts, _launch_us
from simserve.latency.kernels.machine import Machine
from simserve.latency.moe import EpGroup
from simserve.latency.tables.roofline import peaks_of
from simserve.model import Parallelism, load_model
from simserve.model.layers import MoeFfn
from tests.places import SHARED

QWEN = Experts(2048, 768, 128, 8, 1, 1, "bf16")
DEEPSEEK = Experts(7168, 2048, 256, 8, 1, 1, "fp8_block")


def machine(gpu: str = "h100_sxm", engine: str = "vllm") -> Machine:
    card = load_gpu(gpu)
    return Machine(gpu, peaks_of(card), shipped_profiles(), True, card.sm_arch, engine=engine)


def test_balanced_experts_are_what_the_table_says():
    table = shipped_profiles().table("h100_sxm", "moe").select(
        dtype="bf16", hidden=2048, inter=768, experts=128, topk=8, tp=1, ep=1, alpha=0.0, backend="sglang"
    )  # fmt: skip
    cost = RoutedExperts(machine(), QWEN, "balanced").cost(table.numbers("tokens"))
    assert cost.us == pytest.approx(table.numbers("latency_us"), rel=1e-9)
    assert (cost.tags == 0).all()


@pytest.mark.parametrize(
    ("engine", "backend"), [("vllm", "vllm"), ("sglang", "sglang"), ("trtllm", "trtllm"), ("lab", "sglang")]
)
def test_an_engine_runs_its_own_experts(engine, backend):
    """gpt-oss-120b on an H200: three engines, three kernels."""
    shape = {"hidden": 2880, "inter": 2880, "experts": 128, "topk": 4, "tp": 1, "ep": 1, "alpha": 0.0}
    table = shipped_profiles().table("h200_sxm", "moe")
    table = table.select(dtype="w4a16_mxfp4", backend=backend, **shape)
    experts = Experts(2880, 2880, 128, 4, 1, 1, "mxfp4")
    cost = RoutedExperts(machine("h200_sxm", engine), experts, "balanced").cost(table.numbers("tokens"))
    assert cost.us == pytest.approx(table.numbers("latency_us"), rel=1e-6)


def backed(backend, experts, load="balanced", gpu="h200_sxm"):
    card = load_gpu(gpu)
    on = Machine(gpu, peaks_of(card), shipped_profiles(), True, card.sm_arch, moe_backend=backend)
    return RoutedExperts(on, experts, load)


def test_a_backend_runs_its_own_kernels():
    """Marlin on an H200 was measured with Kimi-K3's experts; vLLM's row of 1,024 tokens says 9,062 us."""
    kimi_k3 = Experts(3584, 3072, 896, 16, 1, 1, "mxfp4")
    assert backed("marlin", kimi_k3).cost(np.array([1024.0])).us[0] == pytest.approx(9062, abs=1)
    gpt_oss = Experts(2880, 2880, 128, 4, 1, 1, "mxfp4")
    tokens = np.array([16.0, 8192.0])
    triton, marlin, default = (backed(it, gpt_oss).cost(tokens).us for it in ("triton", "marlin", None))
    assert (triton == default).all()
    # Both read the same weights for few tokens; of many, Marlin multiplies at some 230 TFLOPS, Triton at 560.
    assert marlin[0] == pytest.approx(triton[0], rel=0.25)
    assert 6 * 2880 * 2880 * 4 * 8192 / marlin[1] / 1e6 == pytest.approx(230, rel=0.1)


def test_a_backend_that_was_not_measured_is_refused():
    with pytest.raises(ScenarioError, match=r"moe_backend = marlin.*fp8_block.*triton, cutlass"):
        backed("marlin", DEEPSEEK, gpu="h100_sxm")


def test_time_without_work_is_no_part_of_what_a_shape_scales():
    """40 us and twice the roofline: their line meets no work at 40. Flat times are launch, but for what the
    peak rates need."""
    sizes = np.array([1.0, 2.0, 4.0, 64.0])
    assert _launch_us(sizes, 40 + 6 * sizes, lambda it: 3 * it) == pytest.approx(40)
    assert _launch_us(sizes, np.full(4, 40.0), lambda it: 3 * it) == pytest.approx(37)
    assert _launch_us(sizes, 9 * sizes, lambda it: 3 * it) == 0


@needs_extra
def test_uniform_picks_against_measured_numbers_of_touched_experts():
    """RTX PRO 6000, vLLM's kernel: time by touched experts; 16 uniform tokens touch 128 (1 - (15/16)^16)
    = 82.4."""
    measured = read_extra("rtxpro6000_qwen3-30b-a3b_tp1_moe")
    routed = RoutedExperts(machine("rtx_pro_6000"), QWEN, "uniform")
    errors = []
    for tokens in (2, 4, 8, 16, 32, 64, 128):
        rows = measured[measured.tokens == tokens].sort_values("activated_experts")
        touched = 128 * (1 - (1 - 8 / 128) ** tokens)
        expected_us = np.interp(touched, rows.activated_experts, rows.time_us)
        errors.append(routed.cost(np.array([float(tokens)])).us[0] / expected_us - 1)
    assert np.median(np.abs(errors)) < 0.05
    assert np.max(np.abs(errors)) < 0.25


def test_few_tokens_touch_few_experts_and_many_touch_all():
    uniform, balanced = (RoutedExperts(machine(), QWEN, load) for load in ("uniform", "balanced"))
    tokens = np.array([1.0, 16.0, 2048.0])
    ratio = uniform.cost(tokens).us / balanced.cost(tokens).us
    assert ratio[0] == pytest.approx(1.0, abs=0.02)
    assert 0.6 < ratio[1] < 0.9
    assert ratio[2] == pytest.approx(1.0, abs=0.01)


def test_an_unmeasured_shape_lies_between_its_neighbours():
    """160 experts of 1536 (DeepSeek-V2) were not measured; half as wide experts take less, twice as wide
    more."""
    tokens = np.array([64.0, 1024.0])
    narrow, wanted, wide = (
        RoutedExperts(machine(), Experts(5120, inter, 160, 6, 8, 1, "bf16"), "uniform").cost(tokens)
        for inter in (768, 1536, 3072)
    )
    assert (narrow.us < wanted.us).all()
    assert (wanted.us < wide.us).all()
    assert (wanted.tags == 2).all()


@pytest.mark.reference("validation/published/kernels_published.csv")
def test_deepep_low_latency_against_published_figures():
    """DeepEP's own figures: H800, 128 tokens a rank, hidden 7168, top 8; RDMA as on H100, NVLink at a
    third."""
    published = pd.read_csv(SHARED / "validation/published/kernels_published.csv")
    published = published[
        published.kernel.isin(["dispatch LL", "combine LL"]) & (published.metric == "latency")
    ]
    ratios = []
    for row in published.itertuples():
        ranks = int(str(row.gpu).rsplit("EP", 1)[1])
        if 16 <= ranks <= 64:
            exchange = ExpertExchange(machine(), str(row.kernel).split()[0], 7168, 8, 256, ranks, ranks // 8)
            ratios.append(float(exchange.cost(np.array([128.0])).us[0]) / float(str(row.value)))
    assert len(ratios) >= 5
    assert np.max(np.abs(np.array(ratios) - 1)) < 0.14


def test_sharding_experts_over_more_gpus_is_faster_per_gpu_until_launches_bind():
    times = [
        RoutedExperts(machine(), Experts(7168, 2048, 256, 8, 1, ep, "fp8_block"), "balanced")
        .cost(np.array([512.0]))
        .us[0]
        for ep in (1, 8, 32, 64)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[1] > 3


@pytest.mark.parametrize(("parallel", "names"), [
    (Parallelism(tp=8), {"MoE all-reduce"}),
    (Parallelism(tp=8, ep=8), {"MoE all-reduce"}),
    (Parallelism(tp=1, dp=8), {"token all-gather", "token reduce-scatter"}),
    (Parallelism(dp=8, ep=8), {"dispatch", "combine"}),
])  # fmt: skip
def test_how_tokens_reach_their_experts(parallel, names):
    latency = compile_step_latency(
        load_model("deepseek-v3"), load_gpu("h200_sxm"), parallel, weights_dtype="fp8_block", overhead=VLLM
    )
    ops = {op.name for op in latency.plan.per_token}
    exchange = {"MoE all-reduce", "token all-gather", "token reduce-scatter", "dispatch", "combine"}
    assert ops & exchange == names
    assert latency.estimated == ()


@pytest.mark.parametrize("gpu", ["h100_sxm", "h200_sxm"])
def test_no_experts_are_read_faster_than_memory_allows(gpu):
    """DeepSeek-V3's measured rows imply 1.7 times the bandwidth: their tokens reached half of the experts
    only.

    128 uniform tokens touch 251.6 of 256 experts, each 3 x 7168 x 2048 bytes at fp8.
    """
    needed_us = 251.6 * 3 * 7168 * 2048 / load_gpu(gpu).hbm_bytes_per_s * 1e6
    assert RoutedExperts(machine(gpu), DEEPSEEK, "uniform").cost(np.array([128.0])).us[0] > needed_us


def test_gathered_tokens_cost_what_nccl_takes_for_those_of_all_ranks():
    """64 tokens x 2,048 values x 2 bytes on each of 8 ranks: 2 MiB gathered, and reduced after."""
    spec = load_model("qwen3-30b-a3b")
    (ffn,) = (ffn for ffn in spec.layers[0].ffns if isinstance(ffn, MoeFfn))
    parallel = Parallelism(dp=8, ep=8)
    card = load_gpu("h100_sxm")
    setting = setting_of(spec, card, parallel, lockstep=True, all2all="allgather")
    group = EpGroup(setting, ffn, Experts(2048, 768, 128, 8, 1, 8, "bf16"))
    tokens = np.array([64.0])
    table = shipped_profiles().table("h100_sxm", "collective").select(impl="nccl", ranks=8, dtype="fp16")
    for cost, kind in zip(group.wire(tokens, 8 * tokens), ("all_gather", "reduce_scatter"), strict=True):
        rows = table.select(coll=kind, bytes=2 * 1024 * 1024)
        assert cost.us == pytest.approx(rows.numbers("latency_us"), rel=1e-6)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_copies_of_experts_run_the_kernels_that_were_measured_behind_deepep(phase: str) -> None:
    """288 slots on 72 GPUs are four each with as many picks per GPU as 256 on 64 at 64/72 of the tokens."""
    copied = RoutedExperts(machine(), Experts(7168, 2048, 288, 8, 1, 72, "fp8_block"), "uniform", phase)
    plain = RoutedExperts(machine(), Experts(7168, 2048, 256, 8, 1, 64, "fp8_block"), "uniform", phase)
    for tokens in (4096.0, 16384.0):
        (us,) = copied.cost(np.array([tokens * 72 / 64])).us
        assert us == pytest.approx(plain.cost(np.array([tokens])).us[0], rel=0.02)


def test_a_copy_more_per_gpu_costs_its_weights() -> None:
    """Nine slots instead of eight, at the same tokens: between nothing and an eighth more."""
    eight, nine = (
        RoutedExperts(machine(), Experts(7168, 2048, slots, 8, 1, 32, "fp8_block"), "uniform", "decode")
        for slots in (256, 288)
    )
    tokens = np.array([4096.0])
    assert 1.0 < nine.cost(tokens).us[0] / eight.cost(tokens).us[0] < 1.13
