"""What routers see of running replicas: exact or as of a refresh, the same with and without fast-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from simserve.core import Request, Result, Trace
from simserve.deploy.router import known_of
from simserve.engines.base import POLICIES
from simserve.engines.sglang.sequence import trace_content
from simserve.kvcache.content import TraceContent
from simserve.router.base import ROUTERS, Router, Target
from simserve.sim import ReplicaSpec, simulate
from tests.laws.checkers import all_laws, results_agree
from tests.laws.world import make_trace
from tests.sim.plain_latency import PlainLatency

BLOCK = 4
LONGEST = 80
BLOCKS = {"vllm": 45, "vllm, async": 1000, "sglang": 45}
"""Tight, so that caches are evicted and requests preempted; ample where scheduling is asynchronous."""
LATENCIES = {"uneven": (1000, 10, 3, 1), "round": (1000, 0, 0, 0)}
POLICY_PARAMS = {
    "vllm": {"max_num_batched_tokens": 32, "max_num_seqs": 8},
    "vllm, async": {"max_num_batched_tokens": 32, "max_num_seqs": 8, "async_scheduling": True},
    "sglang": {"chunked_prefill_size": 16, "max_prefill_tokens": 32},
}


def workload(seed: int, rows: int = 60, gap_ns: int = 1500) -> Trace:
    """Prompts of a few families that share beginnings; arrivals on half step times, many at once."""
    rng = np.random.default_rng(seed)
    arrival_ns = np.cumsum(rng.integers(0, 4, rows) * gap_ns // 3 // 500 * 500)
    families = rng.integers(0, 5, rows)
    blocks = rng.integers(1, 9, rows)
    shared = np.minimum(blocks, rng.integers(0, 9, rows))
    ids, fresh = [], 1000
    for family, count, common in zip(families.tolist(), blocks.tolist(), shared.tolist(), strict=True):
        ids += [family * 10 + place for place in range(common)]
        ids += range(fresh, fresh + count - common)
        fresh += count
    trace = make_trace(
        arrival_ns,
        blocks * BLOCK + rng.integers(0, 3, rows),
        rng.integers(0, 40, rows),
        session=np.unique(rng.integers(0, rows // 2, rows), return_inverse=True)[1] if seed % 2 else None,
        think_ns=rng.integers(0, 3, rows) * 1000 if seed % 2 else None,
    )
    offsets = np.concatenate(([0], np.cumsum(blocks)))
    return Trace(
        **{**vars(trace), "block_ids": np.array(ids), "block_offsets": offsets, "block_tokens": BLOCK}
    )


def replicas(trace: Trace, policy_name: str, latency: str = "uneven", count: int = 3) -> list[ReplicaSpec]:
    policy = POLICIES.get(policy_name.split(",")[0])
    shared = PlainLatency(*LATENCIES[latency])
    content = (trace_content if policy_name == "sglang" else TraceContent.of)(trace, BLOCK)
    blocks = BLOCKS[policy_name]
    return [
        ReplicaSpec(
            name=f"replica-{index}",
            pool="all",
            gpus=1,
            policy=policy(
                policy.Params(**POLICY_PARAMS[policy_name]),
                kv_blocks=blocks,
                block_size=BLOCK,
                max_model_len=LONGEST,
                content=content,
            ),
            latency=shared,
            kv_blocks=blocks,
            block_size=BLOCK,
            max_model_len=LONGEST,
            limit_reason="as set by the test",
            max_num_batched_tokens=32,
        )
        for index in range(count)
    ]


def run(trace: Trace, policy: str, router: Any, latency: str = "uneven", **options: Any) -> Result:
    return simulate(trace, replicas(trace, policy, latency), router, **options)


def make_router(name: str, trace: Trace, **options: Any) -> Any:
    router = ROUTERS.get(name)
    return router.made(router.Params(**options), 3, known_of(trace, BLOCK))


VARIANTS: dict[str, list[dict[str, Any]]] = {
    "cache_aware": [{"balance_abs_threshold": 2}, {"eviction_interval_secs": 1e-5, "max_tree_size": 100}],
    "dynamo_kv": [
        {},
        {"use_kv_events": False, "router_ttl_secs": 1e-5},
        {"router_temperature": 0.5},
        {"router_queue_threshold": 0.0, "router_queue_policy": "wspt"},
        {"router_queue_threshold": 0.5, "router_queue_policy": "lcfs", "overlap_score_credit_decay": 1.0},
    ],
    "llm_d": [
        {"refresh_ms": 0.004},
        {"scorers": {"load-aware-scorer": 1, "active-request-scorer": 1, "no-hit-lru-scorer": 2}},
        {"scorers": {"running-requests-size-scorer": 1, "session-affinity-scorer": 1}, "refresh_ms": 0},
    ],
    "vllm_dp": [{"refresh_ms": 0.004}, {"refresh_ms": 0.0}, {"refresh_ms": 0.003, "version": "0.15"}],
    "ewma_latency": [{"half_life_s": 1e-5}, {"signal": "ttft", "weigh_in_flight": False}],
    "length_threshold": [{"threshold_tokens": 20}],
    "consistent_hash": [
        {},
        {"hash_on": "prefix", "prefix_tokens": 4, "load_bound": 1.2, "refresh_ms": 0.002},
    ],
    "session_affinity": [{"max_outstanding_requests": 3, "refresh_ms": 0.003}],
}
"""Settings that bind at this scale (steps of about 1 us); other routers that see state: exact and stale."""


def cases() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name in ROUTERS.names():
        stale = "refresh_ms" in ROUTERS.get(name).Params.model_fields
        usual = [{}, {"refresh_ms": 0.003}, {"refresh_ms": 0.0005}] if stale else [{}]
        found += [(name, options) for options in VARIANTS.get(name, usual)]
    return found


@pytest.mark.parametrize("policy", POLICY_PARAMS)
@pytest.mark.parametrize(("name", "options"), cases(), ids=str)
def test_every_router_decides_alike_with_and_without_fast_forward(
    name: str, options: dict[str, Any], policy: str
) -> None:
    for seed, latency in ((0, "uneven"), (1, "uneven"), (2, "round"), (3, "round")):
        trace = workload(seed)
        fast, stepped = (
            run(trace, policy, make_router(name, trace, **options), latency, fast_forward=fast)
            for fast in (True, False)
        )
        results_agree(fast, stepped)
        all_laws(fast, trace, LONGEST)


def test_the_routers_queue_holds_requests_until_the_worker_has_computed_the_prompt_before() -> None:
    """With one worker and a threshold of 0 it is given a prompt only when it has none to compute."""
    trace = workload(0)
    one = replicas(trace, "vllm", count=1)
    held = simulate(trace, one, make_router("dynamo_kv", trace, router_queue_threshold=0.0))
    answered = held.first_token_ns >= 0
    order = np.argsort(held.first_scheduled_ns[answered], kind="stable")
    assert np.all(held.first_token_ns[answered][order][:-1] <= held.first_scheduled_ns[answered][order][1:])
    free = simulate(trace, replicas(trace, "vllm", count=1), make_router("dynamo_kv", trace))
    assert np.any(np.diff(np.sort(free.first_scheduled_ns[answered])) == 0), (
        "several at once, if nothing holds"
    )


class Watching(Router):
    """Sends requests in turn and writes down what it sees."""

    def __init__(self, refresh_ns: int) -> None:
        self.refresh_ns = refresh_ns
        self.seen: list[tuple[int, tuple[Any, ...]]] = []

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        state = tuple(
            (
                target.outstanding_requests,
                target.waiting_requests,
                target.running_requests,
                target.outstanding_tokens(now_ns),
                target.kv_use(now_ns),
                target.cached_tokens(request, now_ns),
            )
            for target in targets
        )
        self.seen.append((now_ns, state))
        return request.id % len(targets)


@pytest.mark.parametrize("policy", POLICY_PARAMS)
@pytest.mark.parametrize("refresh_ns", [0, 500, 3000, 4700])
@pytest.mark.parametrize("latency", LATENCIES)
def test_everything_that_is_shown_is_that_of_stepping(policy: str, refresh_ns: int, latency: str) -> None:
    for seed in range(4):
        trace = workload(seed)
        seen = []
        for fast in (True, False):
            router = Watching(refresh_ns)
            run(trace, policy, router, latency, fast_forward=fast)
            seen.append(router.seen)
        assert seen[0] == seen[1]
        assert max(state[0][5] for _, state in seen[0]) > 0, "some prompt finds something"
        assert len({state[0][4] for _, state in seen[0]}) > 5, "KV use moves"


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_planted_a_policy_that_hides_the_memory_of_its_run(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(POLICIES.get(policy), "settle", lambda self, steps: None)
    with pytest.raises(AssertionError):
        test_everything_that_is_shown_is_that_of_stepping(policy, 500, "uneven")


@pytest.mark.parametrize("refresh_ns", [1700, 3000, 50_000])
@pytest.mark.parametrize("policy", ["vllm", "orca", "static"])
def test_a_view_is_the_state_just_before_its_refresh(refresh_ns: int, policy: str) -> None:
    """Requests outstanding at T from the result's columns: arrived before T and not ended before T."""
    trace = make_trace(np.arange(40) * 850, [9] * 40, np.arange(40) % 13 + 1)
    router = Watching(refresh_ns)
    result = run_plain(trace, policy, router)
    for now_ns, state in router.seen:
        instant_ns = now_ns - now_ns % refresh_ns
        for replica, seen in enumerate(state):
            there = result.replica == replica
            arrived = there & (result.arrival_ns < instant_ns)
            assert seen[0] == np.count_nonzero(arrived & (result.last_token_ns >= instant_ns))


def run_plain(trace: Trace, policy_name: str, router: Any) -> Result:
    policy = POLICIES.get(policy_name)
    params = policy.Params()
    options = {"kv_blocks": 200, "block_size": BLOCK, "max_model_len": LONGEST}
    specs = [
        ReplicaSpec(
            f"replica-{i}",
            "all",
            1,
            policy(params, **options),
            PlainLatency(),
            200,
            BLOCK,
            LONGEST,
            "as set by the test",
        )
        for i in range(3)
    ]
    return simulate(trace, specs, router)


def test_a_view_before_the_first_refresh_is_empty() -> None:
    router = Watching(1_000_000_000)
    trace = workload(0)
    run(trace, "vllm", router)
    assert {part[:5] for _, state in router.seen for part in state} == {(0, 0, 0, 0, 0.0)}
    assert any(part[5] for _, state in router.seen for part in state), "cached prefixes are never stale"


@pytest.mark.parametrize(
    ("name", "gap_ns"),
    [("least_outstanding_requests", 6000), ("least_outstanding_tokens", 6000), ("shortest_queue", 1500)],
)
def test_stale_state_makes_a_herd(name: str, gap_ns: int) -> None:
    """Between two refreshes all go one way: the worst gap of requests outstanding grows with the age."""
    gaps = []
    for refresh_ms in (0.0, 0.02, 0.1):
        rng = np.random.default_rng(7)
        arrival_ns = np.cumsum(rng.exponential(gap_ns, 400)).astype(np.int64)
        trace = make_trace(arrival_ns, rng.integers(5, 40, 400), rng.integers(5, 30, 400))
        router = ROUTERS.get(name)
        result = run_plain(trace, "vllm", router(router.Params(refresh_ms=refresh_ms), seed=0))
        gaps.append(mean_gap(result))
    assert gaps[0] < gaps[1] < gaps[2]
    assert gaps[2] > 2 * gaps[0]
    assert name != "least_outstanding_requests" or gaps[0] <= 1, "an exact count keeps the replicas level"


def mean_gap(result: Result) -> float:
    """Mean over arrivals of the difference between the most and the least loaded replica."""
    gaps = []
    for now_ns in result.arrival_ns.tolist():
        there = (result.arrival_ns < now_ns) & (result.last_token_ns > now_ns)
        counts = np.bincount(result.replica[there], minlength=3)
        gaps.append(int(counts.max() - counts.min()))
    return float(np.mean(gaps))


@pytest.mark.parametrize(("name", "options"), cases(), ids=str)
def test_the_same_seed_gives_the_same_choices(name: str, options: dict[str, Any]) -> None:
    trace = workload(1)
    first, second = (run(trace, "vllm", make_router(name, trace, **options)) for _ in range(2))
    results_agree(first, second, whole=True)
