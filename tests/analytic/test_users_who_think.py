"""Interactive response time law: users = throughput x (response + think time) (Denning and Buzen, 1978)."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.deploy.build import build
from simserve.scenario.load import load_scenario

SCENARIO = """\
name: users
model: llama-3.1-8b
engine: vllm-0.33
workload:
  synthetic:
    requests: 1500
    arrivals: {{kind: poisson, rate_per_s: 1}}
    prompt_tokens: {{kind: uniform, min: 100, max: 900}}
    output_tokens: {{kind: uniform, min: 20, max: 200}}
  closed_loop: {loop}
pools: [{{gpu: h100_sxm}}]
"""


def simulated(tmp_path, loop: str):
    path = tmp_path / "users.yaml"
    path.write_text(SCENARIO.format(loop=loop))
    deployment = build(load_scenario(path))
    return deployment, deployment.simulate()


@pytest.mark.parametrize("think", ["{kind: constant, value: 5}", "{kind: exponential, mean: 5}"])
def test_users_are_throughput_times_their_cycle(tmp_path, think: str) -> None:
    users = 40
    deployment, result = simulated(tmp_path, f"{{users: {users}, think_s: {think}}}")
    last = np.sort(result.last_token_ns)
    start, end = last[300], last[1200]  # full house: nobody has run out of requests
    ended = (result.last_token_ns > start) & (result.last_token_ns <= end)
    throughput_per_s = ended.sum() / ((end - start) / 1e9)
    response_s = (result.last_token_ns - result.arrival_ns)[ended].mean() / 1e9
    think_s = deployment.trace.think_ns[ended].mean() / 1e9
    assert throughput_per_s * (response_s + think_s) == pytest.approx(users, rel=0.03)


def test_nobody_has_two_requests_and_pauses_belong_to_rows(tmp_path) -> None:
    deployment, result = simulated(tmp_path, "{users: 7, think_s: {kind: exponential, mean: 1}}")
    other, _ = simulated(tmp_path, "{users: 9, think_s: {kind: exponential, mean: 1}}")
    assert (deployment.trace.think_ns == other.trace.think_ns).all()
    times = np.concatenate([result.arrival_ns, result.last_token_ns])
    change = np.concatenate([np.ones(1500), -np.ones(1500)])
    order = np.lexsort((change, times))
    assert np.cumsum(change[order]).max() <= 7
