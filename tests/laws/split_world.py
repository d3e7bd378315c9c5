"""Small worlds with a prefill/decode split: both engines, every overlap, links that are too slow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from simserve.core import Result, Trace
from simserve.engines.base import POLICIES, SplitEngine
from simserve.engines.presets import ENGINES
from simserve.model.kv import KvTransferSize
from simserve.router.base import ROUTERS
from simserve.sim import Clients, GroupSpec, LocalRule, ReplicaSpec, SplitSpec, SwitchRule, simulate
from tests.laws.world import BLOCK_SIZE, LATENCIES, MAX_MODEL_LEN, POOL_MARGIN_BLOCKS
from tests.sim.plain_latency import PlainLatency
from tests.sim.plain_lockstep import PlainLockstep

TOKEN_BYTES = 12
LAYERS = 4
PARAMS: dict[str, dict[str, Any]] = {
    "vllm": {"max_num_batched_tokens": 16, "max_num_seqs": 6},
    "sglang": {"chunked_prefill_size": 16, "max_prefill_tokens": 32, "disable_overlap_schedule": True},
}


@dataclass(frozen=True)
class SplitWorld:
    """Prefill and decode replicas, small enough to be looked at."""

    policy: str = "vllm"
    params: dict[str, Any] = field(default_factory=lambda: {"max_num_batched_tokens": 16, "max_num_seqs": 6})
    prefill: int = 1
    decode: int = 1
    mixed: int = 0
    stages: int = 1
    """Pipeline stages of the prefill side."""
    ranks: bool = False
    """Let all replicas of a side step together."""
    latency: tuple[int, int, int, int] = (1000, 10, 3, 1)
    decode_latency: tuple[int, int, int, int] | None = None
    extra_blocks: int = 0
    router: str = "round_robin"
    router_params: dict[str, Any] = field(default_factory=dict)
    overlap: str = "request"
    bytes_per_s: int = 20_000_000_000
    reshard: int = 0
    handshake_ns: int = 500
    lease_ns: int | None = None
    failure_rate: float = 0.0
    on_failure: str = "recompute"
    local: LocalRule | None = None
    switch: SwitchRule | None = None
    content: bool = False
    """Let the schedulers know what prompts share."""
    reserved: int = 4
    """Tokens that each request of SGLang's decode side keeps free."""
    decode_cache: bool = False
    """SGLang: a prefix cache on the decode side."""

    def but(self, **changes: Any) -> SplitWorld:
        """The same world with other settings."""
        return replace(self, **changes)

    @property
    def kv_blocks(self) -> int:
        """Blocks of a replica."""
        return -(-MAX_MODEL_LEN // BLOCK_SIZE) + POOL_MARGIN_BLOCKS.get(self.policy, 0) + self.extra_blocks

    def specs(self, trace: Trace) -> list[ReplicaSpec]:
        """Fresh replicas of both sides."""
        return [
            *self._side("prefill", self.prefill, self.latency, self.stages, trace),
            *self._side("decode", self.decode, self.decode_latency or self.latency, 1, trace),
            *self._side("mixed", self.mixed, self.latency, 1, trace),
        ]

    def _side(self, role: Any, count: int, latency: Any, stages: int, trace: Trace) -> list[ReplicaSpec]:
        engine = halves_of(self.policy)
        made = {"prefill": engine.prefill, "decode": engine.decode}.get(role) or POLICIES.get(self.policy)
        plain: Any = PlainLatency(*latency, stages=stages, hop=7 if stages > 1 else 0)
        group = None
        if self.ranks:
            plain = PlainLockstep(plain)
            group = GroupSpec(f"{role}s", role, plain)
        content = made.content_of(trace, BLOCK_SIZE) if self.content else None
        options: dict[str, Any] = {} if content is None else {"content": content}
        if self.policy == "sglang" and role == "decode":
            options |= {"reserved_decode_tokens": self.reserved, "decode_cache": self.decode_cache}
        return [
            ReplicaSpec(
                name=f"{role}-{index}",
                pool=role,
                gpus=1,
                policy=made(
                    made.Params(**self.params),
                    kv_blocks=self.kv_blocks,
                    block_size=BLOCK_SIZE,
                    max_model_len=MAX_MODEL_LEN,
                    lanes=stages,
                    **options,
                ),
                latency=plain,
                kv_blocks=self.kv_blocks,
                block_size=BLOCK_SIZE,
                max_model_len=MAX_MODEL_LEN,
                limit_reason="as set by the test",
                max_num_batched_tokens=16,
                role=role,
                group=group,
            )
            for index in range(count)
        ]

    def split(self) -> SplitSpec:
        """What is between the sides, with fresh routers."""
        router = ROUTERS.get(self.router)
        roles = ["prefill", "decode"] + ["mixed"] * bool(self.mixed)
        return SplitSpec(
            engine=halves_of(self.policy),
            routers={
                role: router(router.Params(**(self.router_params if role != "decode" else {})), seed=3)
                for role in roles
            },
            size=KvTransferSize(TOKEN_BYTES, (), 0, LAYERS),
            overlap=self.overlap,  # pyright: ignore[reportArgumentType]
            handshake_ns=self.handshake_ns,
            link_bytes_per_s={"prefill": self.bytes_per_s, "decode": self.bytes_per_s},
            reshard_bytes_per_s={("prefill", "decode"): self.reshard},
            lease_ns=self.lease_ns,
            failure_rate=self.failure_rate,
            on_failure=self.on_failure,  # pyright: ignore[reportArgumentType]
            seed=5,
            local=self.local,
            switch=self.switch,
        )

    def run(self, trace: Trace, **options: Any) -> tuple[Result, list[Any]]:
        """Simulate; return the result and the policies as they were left."""
        specs = self.specs(trace)
        clients = Clients(options.pop("closed_loop", None), options.pop("give_up_ns", None))
        result = simulate(trace, specs, self.split(), clients=clients, **options)
        return result, [spec.policy for spec in specs]


ROUTING: list[dict[str, Any]] = [
    {"router": "round_robin"},
    {"router": "least_outstanding_tokens"},
    {"router": "dynamo_kv"},
    {"router": "dynamo_kv", "router_params": {"router_queue_threshold": 0.5}},
]


def halves_of(policy: str) -> SplitEngine:
    """The engine's halves."""
    halves = ENGINES[policy].disagg
    assert halves is not None
    return halves


@st.composite
def split_worlds(draw: st.DrawFn, policy: str = "vllm") -> SplitWorld:
    """Worlds of one engine, with other shapes, links and rules."""
    engine = halves_of(policy)
    local = st.sampled_from([None, None, LocalRule(4, None), LocalRule(0, 2)])
    kept = draw(local) if engine.computes_prompts else None
    return SplitWorld(
        policy=policy,
        params=PARAMS[policy],
        prefill=draw(st.integers(1, 2)),
        decode=draw(st.integers(1, 3)),
        mixed=draw(st.integers(0, 1)) if kept else 0,
        latency=draw(st.sampled_from(LATENCIES)),
        decode_latency=draw(st.sampled_from([None, (700, 9, 4, 2)])),
        extra_blocks=draw(st.sampled_from([0, 0, 3, 40])),
        **draw(st.sampled_from(ROUTING)),
        overlap=draw(st.sampled_from(["request", "chunk", "layer"])),
        bytes_per_s=draw(st.sampled_from([100_000_000, 1_000_000_000, 20_000_000_000])),
        reshard=draw(st.sampled_from([0, 1_000_000_000])),
        handshake_ns=draw(st.sampled_from([0, 500])),
        lease_ns=draw(st.sampled_from([None, None, 5_000])),
        failure_rate=draw(st.sampled_from([0.0, 0.0, 0.3])),
        on_failure=draw(st.sampled_from(["recompute", "error"])) if engine.computes_prompts else "error",
        local=kept,
        content=draw(st.booleans()),
        decode_cache=draw(st.booleans()),
    )
