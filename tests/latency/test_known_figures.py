"""Figures that follow from arithmetic or that others published, against what the kernels compute with."""

import numpy as np
import pytest

from simserve.hardware import load_gpu
from simserve.latency import shipped_profiles
from simserve.latency.kernels.collective import all_reduce
from simserve.latency.kernels.decode import DecodeAttention
from simserve.latency.kernels.exchange import ExpertExchange
from simserve.latency.kernels.expert_rows import Experts
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mla import Latent, MlaDecode, _work
from simserve.latency.kernels.mla_prefill import MlaPrefill
from simserve.latency.kernels.prefill import PrefillAttention
from simserve.latency.tables.roofline import peaks_of
from simserve.model import load_model
from simserve.model.layers import MlaAttention

V3_EXPERTS = Experts(7168, 2048, 256, 8, 1, 1, "bf16")


def machine(gpu: str, engine: str = "vllm") -> Machine:
    card = load_gpu(gpu)
    return Machine(gpu, peaks_of(card), shipped_profiles(), True, card.sm_arch, engine=engine)


def latent(model: str) -> Latent:
    attention = load_model(model).layers[0].attentions[0]
    assert isinstance(attention, MlaAttention)
    return Latent(attention.core(1), "bf16")


@pytest.mark.parametrize(("gpu", "tokens"), [("h200_sxm", 6597), ("h100_sxm", 9452)])
def test_golden_batch_where_tokens_per_expert_reach_the_ridge(gpu, tokens):
    """V3 picks 8 of 256, so each expert gets a 32nd of the tokens; weights of 2 bytes, 2 FLOP each."""
    peaks = peaks_of(load_gpu(gpu))
    flops, moved = V3_EXPERTS.work(np.array([float(tokens), 2.0 * tokens]), evenly=True)
    weights = 2 * moved[0] - moved[1]  # activations double with the tokens, weights are all touched
    assert weights == pytest.approx(256 * 3 * 7168 * 2048 * 2)
    assert flops[0] / peaks.flops("bf16") == pytest.approx(weights / peaks.hbm_bytes_per_s, rel=1e-3)


@pytest.mark.parametrize(("tokens", "touched"), [(1, 8), (8, 57), (32, 163), (64, 222), (128, 252)])
def test_experts_touched_by_tokens_that_pick_for_themselves(tokens, touched):
    _, moved = V3_EXPERTS.work(np.array([float(tokens)]), evenly=False)
    activations = tokens * 8 * 2.0 * (2 * 7168 + 2048)
    assert (moved[0] - activations) / (3 * 7168 * 2048 * 2) == pytest.approx(touched, abs=0.5)


def test_only_tensorrt_llm_reads_an_8_bit_cache_at_full_speed_on_hopper():
    """512 sequences x 512 tokens x 8 heads x 128 x 2 x 1 byte = 537 MB: 112 us at an H200's 4.8 TB/s."""
    heads, context = Heads(32, 8, 128, 0, "bf16", "fp8"), np.array([512.0])
    own, others = (
        float(DecodeAttention(machine("h200_sxm", engine), heads).cost(512, context).us[0])
        for engine in ("trtllm", "vllm")
    )
    assert 112 < own < 1.35 * 112
    assert others > 2 * 112


def test_only_flash_attention_2_runs_decodes_among_prompts():
    """A consumer card mixes them in one call of FlashAttention 2; TensorRT-LLM does so on no GPU."""
    heads, context = Heads(32, 8, 128, 0, "bf16", "bf16"), np.array([1024.0])
    beside = {}
    for engine in ("vllm", "trtllm"):
        card = machine("rtx_pro_6000", engine)
        beside[engine] = PrefillAttention(card, heads, DecodeAttention(card, heads)).decode_beside(
            64, context
        )
    assert beside["vllm"] is not None
    assert beside["trtllm"] is None


@pytest.mark.parametrize(("model", "flops_per_byte"), [("deepseek-v3", 241.8), ("kimi-k2-instruct", 120.9)])
def test_intensity_of_absorbed_decode(model, flops_per_byte):
    """Long contexts, so that reading the queries does not count."""
    shape = latent(model)
    flops, moved = _work(shape, shape.heads, 1.0, 1e9)
    assert flops / moved == pytest.approx(flops_per_byte, rel=1e-3)


@pytest.mark.parametrize(("phase", "megabytes"), [("dispatch", 7.6), ("combine", 14.7)])
def test_bytes_that_deepep_sends_for_128_tokens(phase, megabytes):
    """Hidden 7168, top 8: fp8 with a scale per 128 out, bf16 back. Estimated exchanges cost by them."""
    a100 = ExpertExchange(machine("a100_sxm"), phase, 7168, 8, 256, 8, 1)  # no such table
    none, some = a100.cost(np.array([0.0, 128.0])).us
    sent = (some - none) * 1e-6 * load_gpu("a100_sxm").nvlink_bytes_per_s * 8 / 7
    assert sent / 1e6 == pytest.approx(megabytes, abs=0.05)


@pytest.mark.parametrize("gpu", ["h100_sxm", "h200_sxm", "b200_sxm"])
@pytest.mark.parametrize("model", ["deepseek-v3", "kimi-k2-instruct"])
def test_short_suffixes_of_long_prefixes_are_absorbed_up_to_about_171_tokens(gpu, model):
    """171 by FLOPs; measured kernels reach less of the peak absorbed, so they cross earlier."""
    decode = MlaDecode(machine(gpu), latent(model), "bf16")
    prefill = MlaPrefill(machine(gpu), latent(model), "bf16", decode)
    cached = 65536

    def is_absorbed(new: int) -> bool:
        absorbed_us = decode.absorbed_us(1, new, cached + (new + 1) / 2)
        return prefill.chunk_us(1, new, cached)[0] == pytest.approx(absorbed_us, rel=1e-9)

    assert is_absorbed(85)
    assert not is_absorbed(172)


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm", "a100_sxm", "l40s"])
@pytest.mark.parametrize("axis", [0, 1], ids=["batch", "context"])
def test_between_two_measured_points_lies_nothing_beyond_them(gpu, axis):
    """So more sequences or context take longer wherever the table says so; its real dips are kept."""
    decode = DecodeAttention(machine(gpu), Heads(32, 8, 128, 0, "bf16", "bf16"))
    grid = decode._grid
    assert grid is not None
    batch, context = grid.axes
    times = grid.at(batch[:, None], context)
    halfway = [batch, context]
    halfway[axis] = np.sqrt(halfway[axis][1:] * halfway[axis][:-1])
    between = grid.at(halfway[0][:, None], halfway[1])
    first, second = (np.take(times, range(n, n + between.shape[axis]), axis) for n in (0, 1))
    assert (between <= np.maximum(first, second)).all()
    assert (between >= 0.98 * np.minimum(first, second)).all()


def test_real_dips_are_kept():
    """Where a larger call was measured to be faster, it stays faster: H100, 32 query and 8 KV heads."""
    rows = shipped_profiles().table("h100_sxm", "attn_decode")
    assert rows is not None
    rows = rows.select(q_heads=32, kv_heads=8, head_dim=128, window=0, kv_dtype="bf16")
    decode = DecodeAttention(machine("h100_sxm"), Heads(32, 8, 128, 0, "bf16", "bf16"))
    dips = 0
    for batch in rows.values("batch"):
        line = rows.select(batch=batch)
        predicted = decode.cost(batch, line.numbers("kv_len"))
        as_measured = predicted.tags == 0  # not raised to what the memory can deliver
        down = (np.diff(line.numbers("latency_us")) < 0) & as_measured[1:] & as_measured[:-1]
        dips += int(down.sum())
        assert (np.diff(predicted.us)[down] < 0).all()
    assert dips > 10


def test_a_gpu_without_nvlink_and_tables_reduces_as_a_measured_one_over_pcie():
    # Both have PCIe 4.0 x16: NCCL's 2 MiB over two L40S take 120.7 us, 512 KiB 50.0 (collective table)
    here = machine("rtx_4090")
    cost = all_reduce(here, "", 2, 1.0).cost(np.array([524288.0, 2097152.0]))
    assert cost.us == pytest.approx([50.0, 120.7], rel=0.01)
    assert any("l40s" in note for note in here.estimated)


ALL_REDUCES_OVER_PCIE = [
    ("l40s", 2, 131_072, 10.988),
    ("l40s", 2, 1_048_576, 60.247),
    ("l40s", 2, 33_554_432, 1689.3),
    ("l40s", 4, 131_072, 57.72),
    ("rtx_pro_6000", 2, 131_072, 8.18),
    ("rtx_pro_6000", 2, 1_048_576, 30.146),
    ("rtx_pro_6000", 2, 33_554_432, 930.62),
    ("rtx_pro_6000", 4, 1_048_576, 86.1),
]
"""Microseconds of the measured tables: vLLM's kernel between two GPUs up to 8 MiB, NCCL's else."""


@pytest.mark.parametrize(("gpu", "ranks", "size", "us"), ALL_REDUCES_OVER_PCIE)
def test_all_reduces_over_pcie_take_what_was_measured(gpu, ranks, size, us):
    card = machine(gpu)
    cost = all_reduce(card, "all-reduce", ranks, float(size)).cost(np.array([1.0]))
    assert cost.us[0] == pytest.approx(us, rel=1e-3)
    assert card.estimated == []


def test_a_gpu_without_nvlink_and_table_says_whose_collectives_stand_for_its_own():
    """A10: PCIe 4.0 x16 as the L40S, so NCCL's time of that table, 74.76 us for 1 MiB."""
    card = machine("a10")
    cost = all_reduce(card, "all-reduce", 2, 1_048_576.0).cost(np.array([1.0]))
    assert cost.us[0] == pytest.approx(74.76, rel=1e-3)
    assert any(
        "all_reduce over 2 GPUs" in note and "assumption: as l40s's" in note for note in card.estimated
    )
