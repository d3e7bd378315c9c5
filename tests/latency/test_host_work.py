"""What a slot of a pipeline waits for: the engine's own work, over its microbatch or over all that runs."""

import pytest

from simserve.engines.overheads import overhead_named
from simserve.hardware import load_gpu
from simserve.latency import compile_step_latency
from simserve.model import Parallelism, load_model


@pytest.mark.parametrize(("engine", "visited"), [("vllm", 10), ("trtllm", 40)])
def test_host_work_by_hand(engine: str, visited: int) -> None:
    overhead = overhead_named(engine)
    latency = compile_step_latency(
        load_model("llama-3.1-8b"), load_gpu("h100_sxm"), Parallelism(pp=4), overhead=overhead
    )
    found = latency.host_ns(sequences=10, chunks=2, running=40)
    assert found == round(1000 * overhead.step_us) + visited * round(1000 * overhead.sequence_us)


def test_the_host_of_trtllm_is_no_slower_than_its_fastest_published_run() -> None:
    # TensorRT-LLM 1.0's table: 31,311 tokens/s of one replica; every token passes the executor's loop once
    assert overhead_named("trtllm").sequence_us <= 1e6 / 31311
