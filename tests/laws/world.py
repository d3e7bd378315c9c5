"""Small worlds for the laws: every registered policy and router, and workloads that try to break them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simserve.core import Result, Trace, TraceOrigin
from simserve.engines.base import POLICIES
from simserve.kvcache import blocks_for
from simserve.router.base import ROUTERS
from simserve.sim import Clients, ReplicaSpec, simulate
from tests.laws.watch import RecountedPolicy, WatchedPolicy
from tests.sim.plain_latency import PlainLatency

BLOCK_SIZE = 4
MAX_MODEL_LEN = 60

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "static": [{"batch_size": 3, "timeout_ms": 0.004}, {"batch_size": 1, "timeout_ms": 0}],
    "orca": [{"max_num_seqs": 4}],
    "vllm": [
        {"max_num_batched_tokens": 16, "max_num_seqs": 6},
        {"max_num_batched_tokens": 64, "enable_chunked_prefill": False},
        {"max_num_batched_tokens": 12, "long_prefill_token_threshold": 5},
        {"max_num_batched_tokens": 16, "scheduling_policy": "priority"},
        {"max_num_batched_tokens": 16, "scheduling_policy": "priority", "version": "0.19"},
        {"max_num_batched_tokens": 16, "version": "0.15"},
        {"max_num_batched_tokens": 16, "watermark": 0.2},
        {"max_num_batched_tokens": 16, "async_scheduling": True},
        {"max_num_batched_tokens": 16, "prefill_schedule_interval": 3, "max_num_active_seqs": 4},
    ],
    "sglang": [
        {"chunked_prefill_size": 16, "max_prefill_tokens": 32},
        {"chunked_prefill_size": -1, "disable_overlap_schedule": True, "disable_radix_cache": True},
        {"chunked_prefill_size": 16, "enable_mixed_chunk": True},
        {"chunked_prefill_size": 16, "enable_priority_scheduling": True},
    ],
}
"""Settings small enough to bind; a policy that is not named here is tried with its defaults."""

SINGLE_LANE = {"sglang"}
"""Policies that refuse pipeline parallelism (their own tests say so)."""
POOL_MARGIN_BLOCKS = {"sglang": 4}
"""SGLang admits only what leaves room for a page and more, so its longest request needs a larger pool."""
RECOUNTED = {"vllm": 0, "orca": 1}
"""Policies whose blocks can be counted from their decisions; 1: they set aside the longest answer's."""


@dataclass(frozen=True)
class World:
    """One deployment, small enough to be looked at."""

    policy: str = "vllm"
    params: dict[str, Any] = field(default_factory=dict)
    kv_blocks: int = blocks_for(MAX_MODEL_LEN, BLOCK_SIZE)
    block_size: int = BLOCK_SIZE
    max_model_len: int = MAX_MODEL_LEN
    replicas: int = 1
    stages: int = 1
    router: str = "round_robin"
    router_params: dict[str, Any] = field(default_factory=dict)
    latency: tuple[int, int, int, int] = (1000, 10, 3, 1)
    """Constants of `PlainLatency`, in ns."""
    hop_ns: int = 7
    watched: bool = True
    """Check every call; costs several times what the simulation does."""

    def make_policy(self) -> Any:
        """A fresh policy, watched."""
        policy = POLICIES.get(self.policy)
        blocks = self.kv_blocks + POOL_MARGIN_BLOCKS.get(self.policy, 0)
        made = policy(
            policy.Params(**self.params),
            kv_blocks=blocks,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            lanes=self.stages,
        )
        if not self.watched:
            return made
        if self.policy in RECOUNTED and not self.lags:
            return RecountedPolicy(made, blocks, self.block_size, self.max_model_len * RECOUNTED[self.policy])
        return WatchedPolicy(made, blocks)

    @property
    def lags(self) -> bool:
        """Whether the scheduler hears of a step's result a step late: requests hold on for a step longer."""
        if self.policy == "sglang":
            return not self.params.get("disable_overlap_schedule", False)
        return self.params.get("async_scheduling", False)

    def specs(self) -> list[ReplicaSpec]:
        """Fresh replicas that share one latency."""
        latency = PlainLatency(*self.latency, stages=self.stages, hop=self.hop_ns if self.stages > 1 else 0)
        return [
            ReplicaSpec(
                name=f"replica-{index}",
                pool="all",
                gpus=self.stages,
                policy=self.make_policy(),
                latency=latency,
                kv_blocks=self.kv_blocks + POOL_MARGIN_BLOCKS.get(self.policy, 0),
                block_size=self.block_size,
                max_model_len=self.max_model_len,
                limit_reason="as set by the test",
            )
            for index in range(self.replicas)
        ]

    def run(self, trace: Trace, **options: Any) -> Result:
        """Simulate and keep nothing but the result."""
        return self.run_watched(trace, **options)[0]

    def run_watched(self, trace: Trace, **options: Any) -> tuple[Result, list[Any]]:
        """Simulate; return the result and the policies with what they decided."""
        router = ROUTERS.get(self.router)
        specs = self.specs()
        clients = Clients(options.pop("closed_loop", None), options.pop("give_up_ns", None))
        result = simulate(
            trace, specs, router(router.Params(**self.router_params), seed=3), clients=clients, **options
        )
        return result, [spec.policy for spec in specs]

    def but(self, **changes: Any) -> World:
        """The same world with other settings."""
        return replace(self, **changes)


def worlds() -> list[World]:
    """One world per registered policy and variant, with a pool that holds one longest request and no more."""
    return [
        World(policy=name, params=params) for name in POLICIES.names() for params in VARIANTS.get(name, [{}])
    ]


def name_of(world: World) -> str:
    """A short name for a test's id."""
    settings = ",".join(f"{key}={value}" for key, value in world.params.items())
    return f"{world.policy}[{settings}]"


def make_trace(
    arrival_ns: Any,
    prompt_tokens: Any,
    output_tokens: Any,
    **columns: Any,
) -> Trace:
    """A trace from lists."""
    given = {name: column for name, column in columns.items() if column is not None}
    return Trace(
        arrival_ns=np.asarray(arrival_ns, dtype=np.int64),
        prompt_tokens=np.asarray(prompt_tokens, dtype=np.int64),
        output_tokens=np.asarray(output_tokens, dtype=np.int64),
        origin=TraceOrigin("by hand", "test"),
        **{name: np.asarray(column, dtype=np.int64) for name, column in given.items()},
    )


@st.composite
def traces(draw: st.DrawFn, *, sessions: bool = False, most: int = 24) -> Trace:
    """Workloads with ties, empty answers, single tokens, prompts at the limit and some that never fit."""
    rows = draw(st.integers(1, most))
    gaps = st.sampled_from([0, 0, 0, 1, 500, 1000, 2000, 3137, 20_000])
    prompt = st.one_of(
        st.integers(1, 20),
        st.sampled_from([1, 3, 4, 5, 16, MAX_MODEL_LEN - 1, MAX_MODEL_LEN - 2, MAX_MODEL_LEN]),
    )
    output = st.one_of(st.integers(0, 12), st.sampled_from([0, 1, 2, 40, MAX_MODEL_LEN]))
    column = lambda values: draw(st.lists(values, min_size=rows, max_size=rows))  # noqa: E731
    outputs = column(output)
    limits = draw(st.sampled_from(["none", "exact", "drawn"]))
    max_tokens = {"none": None, "exact": outputs, "drawn": column(st.integers(1, 30))}[limits]
    session = think = None
    if sessions:
        session = np.unique(column(st.integers(0, max(0, rows // 2))), return_inverse=True)[1]
        think = column(st.sampled_from([0, 0, 1000, 2500]))
    return make_trace(
        np.cumsum(column(gaps)),
        column(prompt),
        outputs,
        max_tokens=max_tokens,
        priority=column(st.integers(0, 2)) if draw(st.booleans()) else None,
        session=session,
        think_ns=think,
    )


LATENCIES = [(1000, 10, 3, 1), (1000, 0, 0, 0)]
"""One under which no two steps are alike, and one that ends every step on a round time, with many ties."""


@st.composite
def deployments(draw: st.DrawFn, world: World) -> World:
    """The world with more replicas, pipeline stages, another router, more memory or other step times."""
    stages = 1 if world.policy in SINGLE_LANE else draw(st.sampled_from([1, 1, 2, 3, 4]))
    router = draw(st.sampled_from(ROUTERS.names()))
    stale = "refresh_ms" in ROUTERS.get(router).Params.model_fields
    return world.but(
        replicas=draw(st.integers(1, 3)),
        stages=stages,
        router=router,
        router_params={"refresh_ms": draw(st.sampled_from([0, 0.0035, 0.02]))} if stale else {},
        latency=draw(st.sampled_from(LATENCIES)),
        kv_blocks=world.kv_blocks + draw(st.sampled_from([0, 0, 1, 5, 40])),
    )
