"""What the client adds: time outside the engine, and patience that ends."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.core import Status
from simserve.deploy.build import build
from simserve.engines.overheads import read_overhead
from simserve.errors import ScenarioError
from simserve.router.least import RoundRobinRouter
from simserve.scenario import Scenario
from simserve.sim import Clients, simulate

SYNTHETIC = {
    "requests": 60,
    "arrivals": {"kind": "poisson", "rate_per_s": 20.0},
    "prompt_tokens": {"kind": "constant", "value": 300},
    "output_tokens": {"kind": "uniform", "min": 20, "max": 200},
}


def deployment(overhead: str, **workload):
    return build(
        Scenario.model_validate(
            {
                "name": "client",
                "model": "llama-3.1-8b",
                "engine": {"preset": "vllm-0.15", "overhead": overhead, "max_num_seqs": 8},
                "pools": [{"gpu": "h100_sxm"}],
                "workload": {"synthetic": SYNTHETIC, **workload},
            }
        )
    )


def overhead_file(folder, text):
    path = folder / "overhead.yaml"
    path.write_text(text)
    return str(path)


def test_time_outside_the_engine_delays_all_tokens_alike(tmp_path):
    plain = deployment("vllm").simulate()
    late = deployment(overhead_file(tmp_path, "base: vllm\nclient_us: 7000\n")).simulate()
    assert (late.first_token_ns - plain.first_token_ns == 7_000_000).all()
    assert (late.last_token_ns - plain.last_token_ns == 7_000_000).all()
    assert (late.first_scheduled_ns == plain.first_scheduled_ns).all()


def test_a_closed_loop_client_sends_again_when_it_has_seen_the_end(tmp_path):
    late = deployment(
        overhead_file(tmp_path, "base: vllm\nclient_us: 7000\n"), closed_loop={"concurrency": 1}
    ).simulate()
    assert (late.arrival_ns[1:] == late.last_token_ns[:-1]).all()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("client_us: 1\n", "base"),
        ("base: vllm\nclient_ms: 1\n", "client_us"),
        ("base: vllm\nclient_us: -1\n", "-1"),
    ],
)
def test_a_wrong_overhead_file_is_refused(tmp_path, text, complaint):
    overhead_file(tmp_path, text)
    with pytest.raises(ScenarioError, match=complaint):
        read_overhead(tmp_path / "overhead.yaml")


def test_clients_that_give_up_are_dropped_and_counted():
    it = deployment("vllm")

    def run(give_up_ns):
        router = RoundRobinRouter(RoundRobinRouter.Params(), seed=0)
        return simulate(it.trace, it.replicas(), router, clients=Clients(give_up_ns=give_up_ns))

    patient = run(None)
    limit_ns = int(np.median(patient.last_token_ns - patient.arrival_ns))
    assert len(run(10**12)) == (run(10**12).status == Status.COMPLETED).sum()
    hasty = run(limit_ns)
    gone = hasty.status == Status.ABANDONED
    done = hasty.status == Status.COMPLETED
    assert gone.any()
    assert done.sum() + gone.sum() == len(hasty)
    step_ns = 40_000_000  # at most the step in flight and one more after the time-out
    assert (hasty.last_token_ns - hasty.arrival_ns)[done].max() <= limit_ns + step_ns
    assert (hasty.output_tokens[gone] <= it.trace.output_tokens[gone]).all()
    assert (hasty.output_tokens[done] == it.trace.output_tokens[done]).all()
