"""The parts of a step add up to the step."""

import pytest

from simserve.core import Chunk, Request
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.hardware import load_gpu
from simserve.latency import IDEAL_OVERHEAD, compile_step_latency, explain_step
from simserve.model import Parallelism, load_model


@pytest.mark.parametrize(("model", "gpu", "parallel"), [
    ("llama-3.1-8b", "h100_sxm", Parallelism()),
    ("llama-3.1-8b", "l40s", Parallelism(tp=2)),
    ("deepseek-v3", "h200_sxm", Parallelism(dp=8, ep=8)),
    ("longcat-flash", "h100_sxm", Parallelism(tp=8, pp=2)),
])  # fmt: skip
@pytest.mark.parametrize("chunks", [(), ((700, 0), (64, 3000))])
def test_parts_add_up(model, gpu, parallel, chunks):
    latency = compile_step_latency(load_model(model), load_gpu(gpu), parallel, overhead=IDEAL_OVERHEAD)
    batch = [Chunk(Request(0, 0, new, 1), new, cached, True) for new, cached in chunks]
    before = latency.step_provenance()
    parts = explain_step(latency, 16, 16 * 1500, batch)
    assert latency.step_provenance() == before
    assert sum(part.us for part in parts) * 1000 == pytest.approx(latency.step_ns(16, 16 * 1500, batch))
    assert parts[-1].name == "engine overhead"
    assert parts[-1].us == pytest.approx(0, abs=0.01)
    assert all(part.us >= 0 for part in parts[:-1])


def test_a_layer_runs_its_kernels_as_often_as_there_are_layers():
    latency = compile_step_latency(
        load_model("deepseek-v3"), load_gpu("h200_sxm"), Parallelism(tp=8), overhead=VLLM
    )
    calls = {part.name: part.calls for part in explain_step(latency, 8, 8000)}
    assert calls["MLA attention, decode"] == calls["attention out"] == 61
    assert calls["MLP up"] == 3
    assert calls["routed experts"] == calls["shared expert up"] == 58
