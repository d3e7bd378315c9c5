"""Engine overhead: what pads, what hides, and that every constant says where it comes from."""

from dataclasses import fields

import pytest

from simserve.core import Chunk, Request
from simserve.engines.overheads import OVERHEADS, overhead_named, with_graphs
from simserve.errors import ScenarioError
from simserve.hardware import load_gpu
from simserve.latency import EngineOverhead, compile_step_latency
from simserve.model import Parallelism, load_model


def step_us(overhead: EngineOverhead, decodes: int, chunks: int = 0) -> float:
    latency = compile_step_latency(
        load_model("llama-3.1-8b"), load_gpu("h100_sxm"), Parallelism(), overhead=overhead
    )
    batch = [Chunk(Request(0, 0, 16, 1), 16, 0, True)] * chunks
    return latency.step_ns(decodes, decodes * 512, batch) / 1000


KERNELS_US = step_us(EngineOverhead("none"), 8)


def test_overlapped_work_costs_only_what_exceeds_the_kernels():
    short, long = KERNELS_US / 2, KERNELS_US * 3
    assert step_us(EngineOverhead("short", step_us=short), 8) == pytest.approx(KERNELS_US, abs=0.002)
    assert step_us(EngineOverhead("long", step_us=long), 8) == pytest.approx(long, abs=0.002)


def test_work_that_is_not_overlapped_adds_up():
    summed = EngineOverhead("summed", 100, 3, 50, overlapped=False, gap_us=7)
    assert step_us(summed, 8) == pytest.approx(KERNELS_US + 100 + 8 * 3 + 7, abs=0.002)
    alone = step_us(EngineOverhead("none"), 8, chunks=1)
    assert step_us(summed, 8, chunks=1) == pytest.approx(alone + 100 + 9 * 3 + 50 + 7, abs=0.002)


def test_a_step_outside_the_graphs_waits_for_its_launches():
    graphs = EngineOverhead("graphs", capture_sizes=(8, 16), launch_layer_us=1000.0)
    assert step_us(graphs, 16) < 32_000
    assert step_us(graphs, 17) == pytest.approx(32_000)
    assert step_us(graphs, 8, chunks=1) == pytest.approx(32_000)


def test_capture_sizes_follow_the_engines():
    vllm = overhead_named("vllm").capture_sizes
    assert vllm[:5] == (1, 2, 4, 8, 16)
    assert {248, 256, 272, 512} <= set(vllm)
    assert vllm[-1] == 512
    sglang = overhead_named("sglang").capture_sizes
    assert sglang[:7] == (1, 2, 4, 8, 12, 16, 24)
    assert sglang[-1] == 256
    assert [overhead_named("vllm").padded(n) for n in (3, 9, 250, 257, 600)] == [4, 16, 256, 272, 600]


@pytest.mark.parametrize("overhead", [it for it in OVERHEADS.values() if it.name != "ideal"])
def test_every_constant_says_where_it_comes_from(overhead):
    constants = {field.name for field in fields(overhead)} - {
        "name",
        "kernels",
        "two_batch",
        "built_in",
        "provenance",
    }
    assert set(overhead.provenance) == constants


def test_graphs_up_to_a_size_are_a_name_of_their_own():
    """The name alone finds the constants again, as a resolved scenario must, and nothing is kept of it."""
    few = with_graphs(overhead_named("vllm"), 20)
    assert few.capture_sizes == (1, 2, 4, 8, 16, 20)
    assert overhead_named("vllm, graphs up to 20") == few
    assert few.built_in
    assert few.name not in OVERHEADS


@pytest.mark.parametrize("name", ["ideal, graphs up to 8", "vllm, graphs up to 0", "vllm, graphs up to all"])
def test_graphs_up_to_nothing_are_refused(name):
    with pytest.raises(ScenarioError, match=name):
        overhead_named(name)


def test_an_unknown_overhead_is_named():
    with pytest.raises(ScenarioError, match=r"vlm.*did you mean 'vllm'"):
        overhead_named("vlm")
