"""Steps of ranks that meet at every MoE layer, on the kernels that ship."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.core import Chunk, Request
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.experts import contiguous, pick_shares, sample_counts
from simserve.experts.popularity import Zipf
from simserve.experts.rank_load import RankMaximum
from simserve.hardware import load_gpu
from simserve.latency import compile_step_latency
from simserve.latency.blocks.plan import All2All
from simserve.latency.compile import compile_lockstep_latency
from simserve.latency.lockstep import LockstepLatency, RankWork
from simserve.latency.overlap import OverlapSpec, Parts, beside, serial, two_batches
from simserve.model import Parallelism, load_model

H100 = load_gpu("h100_sxm")
V3 = load_model("deepseek-v3")
NONE = np.zeros(0, np.int64)


def group(
    ranks: int = 16, *, two_batch: bool = False, all2all: All2All = "deepep", redundant: int = 0
) -> LockstepLatency:
    return compile_lockstep_latency(
        V3,
        H100,
        Parallelism(dp=ranks, ep=ranks),
        weights_dtype="fp8_block",
        all2all=all2all,
        redundant_experts=redundant,
        overlap=OverlapSpec.model_validate({"two_batch": two_batch, "min_decode_tokens": 2}),
        overhead=VLLM,
    )


def step_ms(latency: LockstepLatency, batches: list[int], context: int = 2000, maximum=None) -> float:
    sequences = np.array(batches, np.int64)
    contexts = np.full((len(batches), 1), context, np.int64)
    return latency.decode_run_ns(sequences, contexts, maximum)[0][0] / 1e6


@pytest.mark.parametrize("tp", [1, 2])
def test_one_rank_is_the_plain_latency_bit_for_bit(tp: int) -> None:
    model, parallel = load_model("qwen3-30b-a3b"), Parallelism(tp=tp)
    plain = compile_step_latency(model, H100, parallel, expert_load="balanced", overhead=VLLM)
    one = compile_lockstep_latency(model, H100, parallel, expert_load="balanced", overhead=VLLM)
    contexts = np.arange(1000, 1300)[None, :]
    for batch in (1, 7, 64, 511, 700):
        runs = one.decode_run_ns(np.array([batch]), contexts, None)[0]
        assert runs.tolist() == [plain.step_ns(batch, batch * int(c), ()) for c in contexts[0]]
    chunks = [Chunk(Request(0, 0, 500, 1), 500, 0, True), Chunk(Request(1, 0, 900, 1), 100, 64, False)]
    for decodes in (0, 40):
        work = RankWork(decodes, decodes * 1500, chunks)
        mixed, _ = one.mixed_step_ns([work], NONE, NONE, None)
        assert mixed == plain.step_ns(decodes, decodes * 1500, chunks)


def test_a_step_lasts_at_least_as_long_as_its_slowest_rank() -> None:
    latency = group()
    even = step_ms(latency, [40] * 16)
    uneven = step_ms(latency, [40] * 15 + [200])
    assert uneven >= step_ms(latency, [200])
    assert uneven > even
    note = latency.decode_run_ns(np.array([40, 200]), np.full((2, 1), 2000), None)[1]
    alone = latency.decode_run_ns(np.array([200]), np.full((1, 1), 2000), None)[1]
    assert note.slowest_ns.tolist() == alone.slowest_ns.tolist()


def test_a_prompt_on_one_rank_slows_everybody() -> None:
    latency = group()
    work = RankWork(0, 0, [Chunk(Request(0, 0, 4000, 1), 4000, 0, True)])
    others = np.full(15, 40, np.int64)
    mixed, _ = latency.mixed_step_ns([work], others, np.full(15, 2000), None)
    alone, _ = latency.mixed_step_ns([work], NONE, NONE, None)
    assert mixed >= alone
    assert mixed / 1e6 > 2 * step_ms(latency, [40] * 16)


def test_popular_experts_cost_what_their_rank_computes() -> None:
    latency = group()
    shares = Zipf(s=0.8).shares(58, 256, 8, seed=1)
    skewed = RankMaximum(shares, contiguous(58, 256, 16))
    uniform = RankMaximum(pick_shares(np.ones((58, 256)), 8), contiguous(58, 256, 16))
    assert step_ms(latency, [128] * 16, maximum=skewed) > 1.1 * step_ms(latency, [128] * 16, maximum=uniform)
    assert step_ms(latency, [128] * 16, maximum=uniform) > step_ms(latency, [128] * 16)


def test_tokens_are_conserved_over_dispatch_and_combine() -> None:
    shares = Zipf(s=1.0).shares(4, 256, 8, seed=1)
    counts = sample_counts(shares, 1000, 5, np.random.default_rng(0))
    received = contiguous(4, 256, 16).rank_load(counts)
    assert received.sum(axis=-1) == pytest.approx(np.full((5, 4), 8000.0))


@pytest.mark.parametrize(("phase", "published"), [(0, 118), (1, 195)])
def test_deepep_on_16_ranks_takes_what_its_authors_publish(phase: int, published: float) -> None:
    """DeepEP V1, low latency, 128 tokens, H800 and CX7 400G: 118 and 195 us; the tables are others' H100."""
    (layers,) = group().rank.plan.groups
    tokens = np.array([128.0])
    assert layers.kernels.wire(tokens, tokens)[phase].us[0] == pytest.approx(published, rel=0.2)


@pytest.mark.parametrize(("ranks", "dispatch", "combine"), [(8, 77, 114), (64, 173, 314), (256, 194, 360)])
def test_the_topology_alone_comes_near(ranks: int, dispatch: float, combine: float) -> None:
    """It counts a copy per destination node, so it is a lower bound of the low-latency kernels' figures."""
    (layers,) = group(ranks, all2all="analytic").rank.plan.groups
    tokens = np.array([128.0])
    for cost, published in zip(layers.kernels.wire(tokens, tokens), (dispatch, combine), strict=True):
        assert 0.15 * published < cost.us[0] < 1.3 * published


def test_two_batches_lose_when_small_and_win_when_large() -> None:
    """SGLang on 72 H100 (May 2025): 0.73 times at 32 tokens per GPU, 1.255 at 256; even in between."""
    plain, two = group(72, redundant=32), group(72, redundant=32, two_batch=True)
    gain = {n: step_ms(plain, [n] * 72) / step_ms(two, [n] * 72) for n in (32, 64, 128, 256)}
    assert gain[32] == pytest.approx(0.73, rel=0.15)
    assert gain[64] < 1.0 < gain[128] < gain[256]
    assert gain[256] == pytest.approx(1.255, rel=0.20)


def test_overlaps_by_hand() -> None:
    parts = Parts(np.array([100]), 20, 30, 50, 40, layers=10)
    assert serial(parts).tolist() == [220]  # the shared expert fits beside dispatch
    assert serial(parts._replace(shared=60)).tolist() == [250]
    assert beside(parts, np.array([70])).tolist() == [170]  # 120 of MoE branch beside 70, shared expert 20
    core = np.array([60])
    assert two_batches(parts, core, "ideal", False).tolist() == [2 * 170]  # wire 70 is hidden
    busy = parts._replace(sms=0.2)  # 70 on the wire take a fifth of the units
    assert two_batches(busy, core, "ideal", False).tolist() == [2 * 184]
    assert two_batches(parts, core, "sglang", False).tolist() == [2 * (20 + 40 + 60 + 50)]
    assert two_batches(parts, core, "vllm", False).tolist() == [100 + 50 + 70 + 120]


def test_longcat_hides_its_experts_beside_dense_layers() -> None:
    model = load_model("longcat-flash")
    times = []
    for scmoe in ("auto", "off"):
        overlap = OverlapSpec.model_validate({"scmoe": scmoe})
        latency = compile_lockstep_latency(
            model, H100, Parallelism(dp=32, ep=32), weights_dtype="fp8_block", overlap=overlap, overhead=VLLM
        )
        times.append(step_ms(latency, [64] * 32))
    assert times[0] < times[1]


def test_microbatches_pad_ranks_to_the_fullest() -> None:
    """vLLM pads all ranks to the largest token count where it splits steps: 400 and 800 cost as 800."""
    latency = group(8, two_batch=True)
    context = np.full((8, 1), 2000, np.int64)
    few = np.array([400] * 7 + [800], np.int64)
    local = latency.decode_run_ns(few, context, None)[1].slowest_ns
    assert local.tolist() == latency.decode_run_ns(np.full(8, 800), context, None)[1].slowest_ns.tolist()
