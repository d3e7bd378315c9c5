"""Small worlds with KV tiers below HBM, on prompts that share their beginnings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from simserve.core import Result, Trace
from simserve.engines.base import POLICIES
from simserve.kvcache.tiers import Store, TierCache, TierSpec
from simserve.router.base import ROUTERS
from simserve.sim import Clients, ReplicaSpec, simulate
from tests.laws.watch import WatchedPolicy
from tests.laws.world import BLOCK_SIZE, MAX_MODEL_LEN, POOL_MARGIN_BLOCKS, make_trace
from tests.sim.plain_latency import PlainLatency

BLOCK_BYTES = 4096
BUDGET = {"vllm": {"max_num_batched_tokens": 32}, "sglang": {"chunked_prefill_size": 32}}
"""Steps small enough to cut prompts."""
SETTINGS = {
    "vllm": [
        {},
        {"max_num_seqs": 2},
        {"scheduling_policy": "priority"},
        {"version": "0.15"},
        {"version": "0.19", "max_num_batched_tokens": 64, "enable_chunked_prefill": False},
        {"watermark": 0.2},
        {"async_scheduling": True},
        {"prefill_schedule_interval": 3},
    ],
    "sglang": [
        {},
        {"max_running_requests": 2},
        {"disable_overlap_schedule": True},
        {"schedule_policy": "lpm", "chunked_prefill_size": -1},
        {"enable_mixed_chunk": True},
        {"enable_priority_scheduling": True, "disable_overlap_schedule": True},
    ],
}


def tier(
    capacity_blocks: int = 20,
    *,
    kind: str = "cpu",
    block_ns: int = 10,
    write_ns: int = 1,
    latency_ns: int = 7,
    shared_by: str = "replica",
    own_link: bool = True,
) -> TierSpec:
    """A tier whose links bring a block up in `block_ns` and down in `write_ns`."""
    read, write = (BLOCK_BYTES * 1_000_000_000 // ns for ns in (block_ns, write_ns))
    return TierSpec(kind, capacity_blocks, BLOCK_BYTES, read, write, latency_ns, shared_by, own_link)


@dataclass(frozen=True)
class TieredWorld:
    """Replicas with tiers below a small HBM pool."""

    tiers: tuple[TierSpec, ...] | None = (tier(),)
    """None: no tiers at all."""
    write_through: bool = False
    inclusive: bool = True
    params: dict[str, Any] = field(default_factory=dict)
    kv_blocks: int = MAX_MODEL_LEN // BLOCK_SIZE
    replicas: int = 1
    latency: tuple[int, int, int, int] = (1000, 10, 3, 1)
    min_hit_tokens: int = 0
    policy: str = "vllm"
    windows: tuple[int, ...] = ()
    """KV groups (vLLM without tiers)."""

    def run(self, trace: Trace, **options: Any) -> tuple[Result, list[Any]]:
        """Simulate; return the result and the policies."""
        latency = PlainLatency(*self.latency)
        stores = [Store(spec) for spec in self.tiers or ()]
        specs = [self._spec(index, latency, trace, stores) for index in range(self.replicas)]
        router = ROUTERS.get("round_robin")
        clients = Clients(options.pop("closed_loop", None), options.pop("give_up_ns", None))
        result = simulate(trace, specs, router(router.Params(), seed=3), clients=clients, **options)
        return result, [spec.policy for spec in specs]

    def but(self, **changes: Any) -> TieredWorld:
        """The same world with other settings."""
        return replace(self, **changes)

    def _spec(self, index: int, latency: PlainLatency, trace: Trace, shared: list[Store]) -> ReplicaSpec:
        registered, blocks = (
            POLICIES.get(self.policy),
            self.kv_blocks + POOL_MARGIN_BLOCKS.get(self.policy, 0),
        )
        policy = registered(
            registered.Params(**{**BUDGET[self.policy], **self.params}),
            kv_blocks=blocks,
            block_size=BLOCK_SIZE,
            max_model_len=MAX_MODEL_LEN,
            content=registered.content_of(trace, BLOCK_SIZE),
            **({"windows": self.windows} if self.windows else {"tiers": self._tier_cache(latency, shared)}),
        )
        return ReplicaSpec(
            name=f"replica-{index}",
            pool="all",
            gpus=1,
            policy=WatchedPolicy(policy, blocks),
            latency=latency,
            kv_blocks=blocks,
            block_size=BLOCK_SIZE,
            max_model_len=MAX_MODEL_LEN,
            limit_reason="as set by the test",
        )

    def _tier_cache(self, latency: PlainLatency, shared: list[Store]) -> TierCache | None:
        if self.tiers is None:
            return None
        stores = [store if store.spec.shared_by != "replica" else Store(store.spec) for store in shared]
        return TierCache(
            stores,
            block_size=BLOCK_SIZE,
            recompute_ns=lambda tokens, cached: recompute_ns(latency, tokens, cached),
            write_through=self.write_through,
            inclusive=self.inclusive,
            min_hit_tokens=self.min_hit_tokens,
        )


def recompute_ns(latency: PlainLatency, tokens: int, cached: int) -> int:
    """Return what computing a prompt takes in one step, by the law of `PlainLatency`."""
    return latency.fixed + latency.per_token * tokens + latency.per_pair * tokens * cached


def prompts(rows: list[tuple[int, list[int], int]], block: int = 8) -> Trace:
    """A trace from (arrival, ids of the prompt's blocks, output tokens); the last block lacks one token."""
    offsets = [0]
    for _, ids, _ in rows:
        offsets.append(offsets[-1] + len(ids))
    trace = make_trace(
        [arrival_ns for arrival_ns, _, _ in rows],
        [len(ids) * block - 1 for _, ids, _ in rows],
        [output for _, _, output in rows],
        block_ids=[number for _, ids, _ in rows for number in ids],
        block_offsets=offsets,
    )
    return replace(trace, block_tokens=block)


@st.composite
def shared_prompts(draw: st.DrawFn, most: int = 40) -> Trace:
    """Prompts of one to seven blocks out of a few families, with coarse arrival times."""
    rows = draw(st.integers(1, most))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 500, 1000, 3137, 20_000]), min_size=rows, max_size=rows))
    made, now_ns = [], 0
    for gap in gaps:
        now_ns += gap
        family, length = draw(st.integers(0, 3)), draw(st.integers(1, 7))
        made.append((now_ns, [family * 10 + i for i in range(length)], draw(st.integers(0, 20))))
    return prompts(made)


@st.composite
def tiered_worlds(draw: st.DrawFn) -> TieredWorld:
    """One to three tiers, fast and slow, private and shared, under several schedulers."""
    shared_by = st.sampled_from(["replica", "replica", "node"])
    specs = draw(
        st.lists(
            st.builds(
                tier,
                st.sampled_from([1, 3, 10, 100]),
                block_ns=st.sampled_from([1, 10, 40, 1000]),
                write_ns=st.sampled_from([1, 100, 1000, 5000]),
                latency_ns=st.sampled_from([0, 7, 500, 3000]),
                shared_by=shared_by,
                own_link=st.booleans(),
            ),
            min_size=1,
            max_size=3,
        )
    )
    write_through = draw(st.booleans())
    policy = draw(st.sampled_from(sorted(SETTINGS)))
    params = draw(st.sampled_from(SETTINGS[policy]))
    return TieredWorld(
        tiers=tuple(specs),
        write_through=write_through,
        inclusive=write_through or draw(st.booleans()),
        params=params,
        policy=policy,
        kv_blocks=MAX_MODEL_LEN // BLOCK_SIZE + draw(st.sampled_from([0, 1, 5, 20])),
        replicas=draw(st.integers(1, 3)),
        latency=draw(st.sampled_from([(1000, 10, 3, 1), (100, 50, 0, 2), (1000, 200, 1, 0)])),
        min_hit_tokens=draw(st.sampled_from([0, 0, 8])),
    )
