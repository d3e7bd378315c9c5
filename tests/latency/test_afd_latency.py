"""Steps of attention GPUs and FFN GPUs, on the kernels that ship."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.core import Chunk, Request
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.errors import ScenarioError
from simserve.experts import contiguous, pick_shares
from simserve.experts.popularity import Zipf
from simserve.experts.rank_load import RankMaximum
from simserve.hardware import load_gpu
from simserve.latency.afd import AfdLatency, FfnGpus, compile_afd_latency
from simserve.latency.base import PROVENANCE
from simserve.latency.compile import compile_lockstep_latency
from simserve.latency.kernels.exchange import Network
from simserve.latency.lockstep import RankWork
from simserve.latency.overhead import IDEAL
from simserve.model import Parallelism, load_model

H200 = load_gpu("h200_sxm")
V3 = load_model("deepseek-v3")
FREE = Network(0.0, 1e30)
"""A network that takes no time."""
USUAL = Network(20.0, 40e9)


def group(
    ranks: int = 16,
    ffn_gpus: int = 16,
    microbatches: int = 3,
    network: Network | None = USUAL,
    model: Any = V3,
    dtype: str = "fp8_block",
) -> AfdLatency:
    ffn = FfnGpus(H200, ffn_gpus, microbatches, network)
    return compile_afd_latency(model, H200, Parallelism(dp=ranks), ffn, weights_dtype=dtype, overhead=IDEAL)


def decode(latency: AfdLatency, batch: int, context: int = 4000, maximum: RankMaximum | None = None):
    """Duration in ns of a step in which every rank decodes so many, and its parts."""
    sequences = np.full(latency.ranks, batch, np.int64)
    contexts = np.full((latency.ranks, 1), context, np.int64)
    durations, note = latency.decode_run_ns(sequences, contexts, maximum)
    return int(durations[0]), note


@pytest.mark.parametrize("batch", [1, 16, 128, 700])
def test_one_gpu_each_without_a_network_does_what_one_gpu_does(batch: int) -> None:
    """The two sides together run every kernel of the model once, with one microbatch one after the other."""
    model = load_model("qwen3-30b-a3b")
    apart, _ = decode(group(1, 1, 1, FREE, model, "bf16"), batch)
    together = compile_lockstep_latency(model, H200, Parallelism(), overhead=IDEAL)
    whole = together.quietly_step_ns(batch, batch * 4000, ())
    assert apart == pytest.approx(whole, rel=1e-6)


def test_a_prompt_does_the_same_on_both_sides() -> None:
    model = load_model("qwen3-30b-a3b")
    chunk = Chunk(Request(0, 0, 3000, 1), 3000, 0, True)
    apart = group(1, 1, 1, FREE, model, "bf16").quietly_step_ns(0, 0, [chunk])
    together = compile_lockstep_latency(model, H200, Parallelism(), overhead=IDEAL)
    assert apart == pytest.approx(together.quietly_step_ns(0, 0, [chunk]), rel=1e-6)


def test_one_microbatch_waits_for_every_station() -> None:
    duration, note = decode(group(microbatches=1), 128)
    assert duration == pytest.approx(note.slowest_ns[0] + sum(note.group_ns), rel=1e-4)


@pytest.mark.parametrize("microbatches", [2, 3, 4])
def test_a_step_lasts_at_least_as_long_as_its_busiest_side(microbatches: int) -> None:
    for batch in (16, 64, 256):
        duration, note = decode(group(microbatches=microbatches), batch)
        assert duration >= max(note.slowest_ns[0], *note.group_ns)


def test_microbatches_lose_when_small_and_win_when_large() -> None:
    """Each reads all weights again; what they hide is the wait for the other side."""
    gain = {n: decode(group(microbatches=1), n)[0] / decode(group(microbatches=3), n)[0] for n in (6, 384)}
    assert gain[6] < 1.0
    assert gain[384] > 1.5


def test_fewer_sequences_than_microbatches_make_fewer_microbatches() -> None:
    assert decode(group(microbatches=8), 2)[0] == decode(group(microbatches=2), 2)[0]


def test_more_ffn_gpus_make_only_the_ffn_side_faster() -> None:
    few, many = (decode(group(ffn_gpus=gpus), 256)[1] for gpus in (16, 32))
    assert few.slowest_ns.tolist() == many.slowest_ns.tolist()
    assert few.group_ns[2] > many.group_ns[2]


def test_the_busiest_ffn_gpu_sets_the_pace() -> None:
    latency = group(24, 8)
    shares = Zipf(s=0.8).shares(58, 256, 8, seed=1)
    even = RankMaximum(pick_shares(np.ones((58, 256)), 8), contiguous(58, 256, 8))
    skewed = RankMaximum(shares, contiguous(58, 256, 8))
    assert (
        decode(latency, 256, maximum=skewed)[1].group_ns[2]
        > decode(latency, 256, maximum=even)[1].group_ns[2]
    )
    assert decode(latency, 256, maximum=even)[0] >= decode(latency, 256)[0]


def test_the_hop_is_bytes_over_the_busier_port() -> None:
    """24 ranks of 128 tokens, 8 FFN GPUs: each receives an eighth of 8 (1 - (7/8)^8) copies of them."""
    latency = group(24, 8, 1, Network(20.0, 40e9))
    _, note = decode(latency, 128)
    copies = 8 * (1 - (7 / 8) ** 8)
    dispatch_us = 20 + 24 * 128 / 8 * copies * 7168 * (1 + 4 / 128) / 40e9 * 1e6
    dense_us = 20 + 24 * 128 / 8 * 7168 * (1 + 4 / 128) / 40e9 * 1e6  # a dense layer's token goes to one GPU
    assert note.group_ns[1] / 1000 == pytest.approx(58 * dispatch_us + 3 * dense_us, rel=1e-6)


def test_a_copy_per_node_sends_less() -> None:
    per_gpu, per_node = (
        decode(group(24, 8, 1, Network(20.0, 40e9, per_node)), 128)[1].group_ns for per_node in (False, True)
    )
    assert per_node[1] < 0.5 * per_gpu[1]
    assert per_node[2] == per_gpu[2]


def test_the_hop_from_the_tables_is_that_of_as_many_gpus() -> None:
    """16 + 16 GPUs with as many picks each: the low-latency kernels of a group of 32."""
    _, note = decode(group(16, 16, 1, None), 128)
    even = compile_lockstep_latency(
        V3,
        H200,
        Parallelism(dp=32, ep=32),
        weights_dtype="fp8_block",
        all2all="deepep_low_latency",
        overhead=VLLM,
    )
    (layers,) = even.rank.plan.groups
    tokens = np.array([128.0])
    dispatch_us = float(layers.kernels.wire(tokens, tokens)[0].us[0])
    assert note.group_ns[1] / 1000 / 58 == pytest.approx(dispatch_us, rel=0.1)


def test_a_prompt_on_one_rank_slows_everybody() -> None:
    latency = group()
    work = RankWork(0, 0, [Chunk(Request(0, 0, 4000, 1), 4000, 0, True)])
    others = np.full(15, 40, np.int64)
    mixed, _ = latency.mixed_step_ns([work], others, np.full(15, 2000), None)
    assert mixed > 2 * decode(latency, 40, 2000)[0]


def test_all_time_is_booked() -> None:
    latency = group()
    duration, note = decode(latency, 128)
    latency.book(note, 1, duration)
    booked = latency.step_provenance()
    assert set(booked) == set(PROVENANCE)
    assert sum(booked.values()) == pytest.approx(duration)


def test_layers_with_two_attentions_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"longcat-flash have 2 attentions .* not one of each"):
        group(model=load_model("longcat-flash"))
