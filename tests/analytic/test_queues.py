"""A replica that serves one request at a time is a queue with a textbook answer (Kleinrock, vol. 1)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from simserve.core import Result, Trace
from tests.laws.world import World, make_trace

STEP_NS = 100_000
ONE_BY_ONE = {
    "vllm": {"max_num_seqs": 1},
    "orca": {"max_num_seqs": 1},
    "static": {"batch_size": 1, "timeout_ms": 0},
    "sglang": {"max_running_requests": 1, "disable_overlap_schedule": True},
}
BATCHES = 16
CONFIDENCE = 0.999
SEEDS = (1, 2, 3)


def server(policy: str) -> World:
    """Every step takes STEP_NS, so an answer of n tokens keeps the server for n steps."""
    return World(
        policy,
        ONE_BY_ONE[policy],
        latency=(STEP_NS, 0, 0, 0),
        kv_blocks=20_000,
        max_model_len=60_000,
        watched=False,
    )


def poisson(rate_per_step: float, answers: np.ndarray, rng: np.random.Generator) -> Trace:
    """Poisson arrivals, `rate_per_step` in the time of a step."""
    gaps_ns = rng.exponential(STEP_NS / rate_per_step, len(answers)).astype(np.int64)
    return make_trace(np.cumsum(gaps_ns) - gaps_ns[0], np.full(len(answers), 8), answers)


def mean_wait_steps(results: list[Result]) -> tuple[float, float]:
    """Mean wait in steps and the half-width of its confidence interval, by batch means over all seeds.

    The first tenth of each run is left out: the system starts empty.
    """
    batches = []
    for result in results:
        wait = (result.first_scheduled_ns - result.arrival_ns)[len(result) // 10 :]
        batches += [batch.mean() / STEP_NS for batch in np.array_split(wait, BATCHES)]
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(batches) - 1)
    return float(np.mean(batches)), float(quantile * stats.sem(batches))


def agrees(
    policy: str, rho: float, mean_answer: int, answers, expected_steps: float, precision: float
) -> None:
    """Simulate several seeds; the expected wait must lie in an interval that is narrow enough to matter."""
    results = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        results.append(server(policy).run(poisson(rho / mean_answer, answers(rng), rng)))
    mean, half_width = mean_wait_steps(results)
    assert half_width < precision * expected_steps, "the interval is too wide to prove anything"
    assert abs(mean - expected_steps) <= half_width, (
        f"{mean:.3f} +- {half_width:.3f}, not {expected_steps:.3f}"
    )


@pytest.mark.parametrize(
    ("policy", "rho"),
    [("vllm", 0.3), ("vllm", 0.8), ("orca", 0.5), ("static", 0.5)],
)
def test_constant_service_is_m_d_1(policy: str, rho: float) -> None:
    """Mean wait = rho / (2 (1 - rho)) service times."""
    length, requests = 10, 8000
    expected = rho / (2 * (1 - rho)) * length
    agrees(policy, rho, length, lambda rng: np.full(requests, length), expected, precision=0.25)


@pytest.mark.parametrize(("policy", "rho"), [("vllm", 0.3), ("orca", 0.6)])
def test_exponential_answers_are_m_m_1(policy: str, rho: float) -> None:
    """Mean wait = rho / (1 - rho) service times; answers are geometric, with 200 steps close to exponential.

    For a geometric service of mean m steps E[S^2] = (2 - 1/m) m^2, so the wait is short of M/M/1's by 1/400.
    """
    length, requests = 200, 8000
    expected = rho / (1 - rho) * length * (1 - 1 / (2 * length))
    agrees(policy, rho, length, lambda rng: rng.geometric(1 / length, requests), expected, precision=0.25)


def test_the_wait_is_that_of_lindleys_recursion_for_every_request() -> None:
    """W(n+1) = max(0, W(n) + S(n) - A(n)), to the nanosecond (Lindley 1952)."""
    rng = np.random.default_rng(4)
    trace = poisson(0.09, rng.integers(1, 20, 500), rng)
    for policy in ONE_BY_ONE:
        result = server(policy).run(trace)
        wait = 0
        for row in range(len(trace)):
            assert result.first_scheduled_ns[row] - result.arrival_ns[row] == wait
            if row + 1 < len(trace):
                gap = int(trace.arrival_ns[row + 1] - trace.arrival_ns[row])
                wait = max(0, wait + int(trace.output_tokens[row]) * STEP_NS - gap)
