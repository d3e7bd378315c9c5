"""One pool of a scenario, built: what `pool_plan` knows of it, its step latency, and its replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from simserve.core import PoolFacts, Trace
from simserve.deploy.afd import FfnPool, afd_assumptions
from simserve.deploy.engine import ResolvedEngine
from simserve.deploy.kv_tiers import grouping, tier_assumptions, tier_caches
from simserve.deploy.moe import expert_plan, groups_of
from simserve.deploy.pool_plan import Limit, beyond_node, half_options, plan_pool, policy_of, split_engine
from simserve.deploy.speculation import Speculation
from simserve.deploy.step_latency import step_latency
from simserve.experts.popularity import POPULARITIES
from simserve.experts.state import ExpertPlan
from simserve.hardware import GpuSpec
from simserve.latency import ProfileStore, TableLatency
from simserve.latency.lockstep import LockstepLatency
from simserve.latency.overhead import measured_host_link
from simserve.model import ModelSpec, Parallelism
from simserve.model.dtypes import AUTO, PLAIN, dtype_words
from simserve.model.kv import kv_bytes_per_token, kv_bytes_per_token_per_rank
from simserve.model.memory import MemoryLedger
from simserve.model.params import flops_per_pair
from simserve.scenario.explain import explain
from simserve.scenario.load import LoadedScenario
from simserve.scenario.pool_spec import EXPERT_LOAD_KEYS, ExpertLoadSpec, PoolSpec
from simserve.scenario.split_spec import KvTierSpec
from simserve.sim import ReplicaSpec


@dataclass(frozen=True)
class BuiltPool:
    """Equal replicas: what they share, and how to make one."""

    spec: PoolSpec
    model: ModelSpec
    gpu: GpuSpec
    engine: ResolvedEngine
    ledger: MemoryLedger
    limit: Limit
    latency: TableLatency | LockstepLatency
    facts: PoolFacts
    assumptions: tuple[str, ...]
    """What was taken for granted about this pool, in words."""
    kv_tiers: tuple[KvTierSpec, ...] = ()
    """KV tiers below HBM, with every figure filled in."""
    experts: ExpertPlan | None = None
    """How picks spread over the experts of a group; None: every rank gets the same."""
    ffn: FfnPool | None = None
    """FFN GPUs beside those of the ranks; None: every GPU does both."""
    speculation: Speculation | None = None
    """What drafts tokens, and how they are verified; None: nothing does."""
    half_options: Mapping[str, Any] = field(default_factory=dict)
    """What the scenario's `transfer` says to the policies of a split (see `SplitEngine.decode_options`)."""

    @property
    def kv_blocks(self) -> int:
        """Usable KV blocks of one replica."""
        return self.ledger.kv_blocks

    @property
    def kv_bytes_per_token(self) -> float:
        """KV bytes of one token in all layers, before it is split over GPUs (or copied to them)."""
        return kv_bytes_per_token(self.model, self.spec.kv_dtype)

    @property
    def kv_bytes_per_token_per_gpu(self) -> float:
        """KV bytes of one token on one GPU; with pipeline stages, on the one that keeps most."""
        parallel = Parallelism(tp=self.spec.tp, pp=self.spec.pp)
        return kv_bytes_per_token_per_rank(self.model, parallel, self.spec.kv_dtype)

    @property
    def decode_flop_per_kv_byte(self) -> float | None:
        """Attention FLOPs of one decoding query per byte of cache that a GPU reads; None without a cache.

        Latent attention in its absorbed form. Heads are split over tp, latents are copied to every rank.
        """
        per_rank = kv_bytes_per_token_per_rank(self.model, Parallelism(tp=self.spec.tp), self.spec.kv_dtype)
        return flops_per_pair(self.model, "absorbed") / self.spec.tp / per_rank if per_rank else None

    def replicas(self, trace: Trace) -> list[ReplicaSpec]:
        """Return the replicas, each with a fresh policy; they share step latency and content."""
        content = self.engine.policy.content_of(trace, self.engine.block_size)
        options = {} if content is None else {"content": content}
        if isinstance(self.latency, LockstepLatency):
            return [
                replace(self._replica(f"{group.name}.{rank}", options), group=group)
                for group in groups_of(self.spec, self.latency, self.experts)
                for rank in range(self.spec.dp)
            ]
        tiers = self._tiers() if self.kv_tiers else [{}] * self.spec.replicas
        return [
            self._replica(f"{self.spec.name}-{index}", options | below) for index, below in enumerate(tiers)
        ]

    def _tiers(self) -> list[dict[str, Any]]:
        gpus = self.facts.gpus_per_replica
        assert isinstance(self.latency, TableLatency)
        caches = tier_caches(
            self.spec,
            self.engine,
            self.latency,
            self.kv_tiers,
            gpus=gpus,
            gpus_per_node=self.gpu.gpus_per_node,
            token_bytes=self.kv_bytes_per_token,
            token_bytes_of_gpus=self.kv_bytes_per_token_per_gpu * gpus,
        )
        return [{"tiers": cache} for cache in caches]

    def _replica(self, name: str, options: dict[str, Any]) -> ReplicaSpec:
        engine = self.engine
        make = policy_of(engine, self.spec.role)
        if self.speculation is not None:
            make = self.speculation.policy(self.spec.role)
            options = options | {"drafting": self.speculation.drafting}
        if self.spec.role == "decode":
            own = split_engine(engine).decode_options
            options = options | {name: value for name, value in self.half_options.items() if name in own}
        if self.ledger.kv_groups is not None:
            options["windows"] = self.ledger.kv_groups.windows
        policy = make(
            engine.params,
            kv_blocks=self.kv_blocks,
            block_size=engine.block_size,
            max_model_len=self.limit.tokens,
            lanes=self.spec.pp,
            **options,
        )
        return ReplicaSpec(
            name=name,
            pool=self.spec.name,
            gpus=self.facts.gpus_per_replica,
            policy=policy,
            latency=self.latency,
            kv_blocks=self.kv_blocks,
            block_size=engine.block_size,
            max_model_len=self.limit.tokens,
            limit_reason=self.limit.reason,
            max_num_batched_tokens=engine.published_token_budget,
            role=self.spec.role,
            client_ns=round(1000 * engine.overhead.client_us),
            acceptance=self.speculation.acceptance if self.speculation is not None else None,
        )


def build_pool(
    loaded: LoadedScenario, index: int, model: ModelSpec, profiles: ProfileStore, compiled: dict[Any, Any]
) -> BuiltPool:
    """Build pool number `index`; `compiled` holds the step latencies that equal pools share."""
    planned = plan_pool(loaded, index, model, profiles)
    spec, gpu, engine, parallel, ledger, limit, facts, ffn, speculation = planned
    with loaded.blame("pools", index):
        latency = step_latency(loaded, model, planned, profiles, compiled)
    link = measured_host_link(profiles, gpu.name) if spec.kv_tiers else None
    tiers = tuple(tier.filled_in(parallel.gpus, gpu.pcie_bytes_per_s, link) for tier in spec.kv_tiers or ())
    with loaded.blame("pools", index, "expert_load"):
        experts = _experts(loaded, index, model, ffn.gpu if ffn else gpu, spec, latency)
    assumptions = _assumptions(engine, latency) + tier_assumptions(tiers, link)
    assumptions += _types_of(loaded, index, model, spec) + beyond_node(spec, gpu)
    assumptions += grouping(model, spec, engine).assumptions + afd_assumptions(ffn)
    assumptions += speculation.assumptions if speculation is not None else ()
    return BuiltPool(
        spec,
        model,
        gpu,
        engine,
        ledger,
        limit,
        latency,
        facts,
        assumptions,
        tiers,
        experts,
        ffn,
        speculation,
        half_options(loaded),
    )


def _experts(
    loaded: LoadedScenario,
    index: int,
    model: ModelSpec,
    gpu: GpuSpec,
    spec: PoolSpec,
    latency: TableLatency | LockstepLatency,
) -> ExpertPlan | None:
    """Return how picks spread over the experts of a group; None where every rank gets the same."""
    if not isinstance(latency, LockstepLatency):
        return None
    try:
        return expert_plan(model, gpu, spec, loaded.scenario.seed, loaded.folder)
    except ValidationError as error:
        assert isinstance(spec.expert_load, ExpertLoadSpec)
        kind, place = POPULARITIES.get(spec.expert_load.kind), ("pools", index, "expert_load")
        raise explain(error, loaded.document, kind, place, also_allowed=EXPERT_LOAD_KEYS) from error


def _types_of(loaded: LoadedScenario, index: int, model: ModelSpec, spec: PoolSpec) -> tuple[str, ...]:
    """Return what the checkpoint decided about weights and KV cache, in words."""
    asked, own = loaded.scenario.pools[index], model.checkpoint
    words = []
    if not isinstance(asked.weights_dtype, str) or asked.weights_dtype == AUTO:
        words.append(f"weights {dtype_words(spec.weights_dtype)}")
    if asked.kv_dtype == AUTO and own.kv != PLAIN.kv:
        words.append(f"KV cache {own.kv}")
    return (f"{' and '.join(words)}, by the {own.source}",) if words and own.source else ()


def _assumptions(engine: ResolvedEngine, latency: TableLatency | LockstepLatency) -> tuple[str, ...]:
    names_by_text: dict[str, list[str]] = {}
    for name, text in latency.overhead.provenance.items():
        names_by_text.setdefault(text, []).append(name)
    overhead = [
        f"engine overhead {engine.overhead.name}, {', '.join(names)}: {text}"
        for text, names in names_by_text.items()
    ]
    return (f"engine {engine.label}: {engine.source}", *overhead, *latency.estimated)
