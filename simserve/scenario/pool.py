"""One pool of a scenario, built: GPU, engine, memory, longest sequence, step latency, and its replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

from simserve.core import PoolFacts, Trace
from simserve.engine import ReplicaSpec
from simserve.errors import ScenarioError
from simserve.experts.state import ExpertPlan
from simserve.hardware import GpuSpec, load_gpu
from simserve.latency import ProfileStore, TableLatency, compile_step_latency
from simserve.latency.host_link import measured_host_link
from simserve.latency.kernels.experts import ExpertLoad
from simserve.latency.lockstep import LockstepLatency
from simserve.latency.roofline import peaks_of
from simserve.model import ModelSpec, Parallelism
from simserve.model.attention import flops_per_pair
from simserve.model.dtypes import kv_cache_dtype, weight_format
from simserve.model.kv import kv_bytes_per_token, kv_bytes_per_token_per_rank
from simserve.model.memory import MemoryLedger, memory_ledger
from simserve.model.memory_rules import memory_rules
from simserve.model.params import flops_per_token
from simserve.model.parts import routed_share
from simserve.model.spec import MoeFfn
from simserve.model.weights import check_parallelism, weight_bytes_per_stage
from simserve.scenario.afd import FfnPool, afd_assumptions, ffn_pool, with_ffn
from simserve.scenario.engine import ResolvedEngine, check_lengths, resolve_engine
from simserve.scenario.halves import policy_of, split_engine
from simserve.scenario.kv_groups import grouping
from simserve.scenario.kv_tier_spec import KvTierSpec
from simserve.scenario.kv_tiers import check_tiers, tier_assumptions, tier_caches
from simserve.scenario.load import LoadedScenario
from simserve.scenario.moe import (
    check_group,
    expert_plan,
    group_latency,
    groups_of,
    moe_layers,
    redundant_experts,
    steps_together,
)
from simserve.scenario.moe_spec import ExpertLoadSpec
from simserve.scenario.spec import PoolSpec
from simserve.scenario.speculation import Speculation, plain_latency, speculating, speculation_of
from simserve.scenario.split_spec import TransferSpec

DEFAULT_EXPERT_LOAD: ExpertLoad = "uniform"
_OF_THE_HALVES = ("reserved_decode_tokens", "decode_cache")
"""Keys of `transfer` that are settings of a split engine's policies."""


class Limit(NamedTuple):
    """Longest sequence that a replica accepts, and why."""

    tokens: int
    reason: str


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
    """What the scenario's `transfer` says to the policies of a split, as far as they ask for it by name."""

    @property
    def kv_blocks(self) -> int:
        """Usable KV blocks of one replica."""
        return self.ledger.kv_blocks

    @property
    def kv_bytes_per_token(self) -> int:
        """KV bytes of one token in all layers, before it is split over GPUs (or copied to them)."""
        return kv_bytes_per_token(self.model, self.spec.kv_dtype)

    @property
    def kv_bytes_per_token_per_gpu(self) -> int:
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
        content_of = getattr(self.engine.policy, "content_of", None)
        content = content_of(trace, self.engine.block_size) if content_of else None
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
        wanted = signature(make).parameters
        options = options | {name: value for name, value in self.half_options.items() if name in wanted}
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
            role=self.spec.role,
            client_ns=round(1000 * engine.overhead.client_us),
            acceptance=self.speculation.acceptance if self.speculation is not None else None,
        )


class PlannedPool(NamedTuple):
    """What is known of a pool before its step latency is compiled."""

    spec: PoolSpec
    gpu: GpuSpec
    engine: ResolvedEngine
    parallel: Parallelism
    ledger: MemoryLedger
    limit: Limit
    facts: PoolFacts
    ffn: FfnPool | None
    speculation: Speculation | None


def plan_pool(loaded: LoadedScenario, index: int, model: ModelSpec, profiles: ProfileStore) -> PlannedPool:
    """Check pool number `index` and draw up its memory; raises `ScenarioError` for what does not fit."""
    spec = loaded.scenario.pools[index]
    with loaded.blame("pools", index, "gpu"):
        gpu = load_gpu(spec.gpu, profiles.folders)
    longest = spec.max_model_len or model.max_position_embeddings
    engine = resolve_engine(loaded, index, gpu.hbm_bytes, longest)
    parallel = Parallelism(tp=spec.tp, pp=spec.pp, dp=spec.dp, ep=spec.ep)
    with loaded.blame("pools", index, "weights_dtype"):
        weight_format(spec.weights_dtype)
    with loaded.blame("pools", index, "experts_dtype"):
        weight_format(spec.weights_dtype, spec.experts_dtype)
    with loaded.blame("pools", index, "kv_dtype"):
        kv_cache_dtype(spec.kv_dtype)
    with loaded.blame("pools", index):
        check_group(spec, model)
        check_parallelism(model, parallel, 0 if spec.afd else redundant_experts(spec))
        _check_longest(spec, model)
        _check_experts(spec, model)
        check_tiers(spec, engine)
        ffn = ffn_pool(spec, model, gpu, engine.gpu_memory_utilization, redundant_experts(spec), profiles)
        engine = speculating(engine, spec)
        speculation = speculation_of(spec, model, engine, loaded.scenario.seed, loaded.folder)
        ledger = _ledger(model, gpu, parallel, spec, engine, speculation)
        limit = _limit(spec, model, ledger)
        if spec.role == "decode" and split_engine(engine).room_first:
            limit = _beside_reserve(limit, ledger, _half_options(loaded)["reserved_decode_tokens"])
        if spec.role == "decode" and speculation is not None:
            limit = _beside_reserve(limit, ledger, speculation.step_slots)
    check_lengths(loaded, index, engine, limit.tokens)
    facts = with_ffn(_facts(model, gpu, parallel, spec, engine.sequences), ffn, spec)
    return PlannedPool(spec, gpu, engine, parallel, ledger, limit, facts, ffn, speculation)


def build_pool(
    loaded: LoadedScenario, index: int, model: ModelSpec, profiles: ProfileStore, compiled: dict[Any, Any]
) -> BuiltPool:
    """Build pool number `index`; `compiled` holds the step latencies that equal pools share."""
    planned = plan_pool(loaded, index, model, profiles)
    spec, gpu, engine, parallel, ledger, limit, facts, ffn, speculation = planned
    with loaded.blame("pools", index):
        latency = _latency(loaded, model, gpu, parallel, spec, engine, profiles, compiled, ffn, speculation)
    link = measured_host_link(profiles, gpu.name) if spec.kv_tiers else None
    tiers = tuple(tier.filled_in(parallel.gpus, gpu.pcie_bytes_per_s, link) for tier in spec.kv_tiers or ())
    with loaded.blame("pools", index, "expert_load"):
        experts = None
        if isinstance(latency, LockstepLatency):
            experts = expert_plan(model, ffn.gpu if ffn else gpu, spec, loaded.scenario.seed, loaded.folder)
    assumptions = _assumptions(engine, latency) + tier_assumptions(tiers, link)
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
        _half_options(loaded),
    )


def _check_experts(spec: PoolSpec, model: ModelSpec) -> None:
    for name in ("experts_dtype", "expert_load"):
        if getattr(spec, name) is not None and not has_experts(model):
            raise ScenarioError(f"{name} = {getattr(spec, name)}: {model.name} has no experts")


def has_experts(model: ModelSpec) -> bool:
    """Return True if the model has routed experts."""
    return any(isinstance(ffn, MoeFfn) for group in model.layers for ffn in group.ffns)


def _ledger(
    model: ModelSpec,
    gpu: GpuSpec,
    parallel: Parallelism,
    spec: PoolSpec,
    engine: ResolvedEngine,
    speculation: Speculation | None,
) -> MemoryLedger:
    groups = grouping(model, spec, engine).groups
    if speculation is not None and groups is not None:
        raise ScenarioError(
            "speculation with windows that give KV blocks back is not simulated yet; set "
            "disable_hybrid_kv_cache_manager: true"
        )
    return memory_ledger(
        model,
        gpu,
        parallel,
        weights_dtype=spec.weights_dtype,
        kv_dtype=spec.kv_dtype,
        block_size=engine.block_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_num_batched_tokens=engine.tokens_per_step(spec.max_model_len or model.max_position_embeddings),
        max_num_seqs=engine.sequences,
        max_model_len=spec.max_model_len,
        rules=memory_rules(engine.label),
        redundant_experts=0 if spec.afd else redundant_experts(spec),
        experts_dtype=spec.experts_dtype,
        kv_groups=groups,
        attention_only=spec.afd is not None,
        draft=speculation.memory if speculation is not None else None,
    )


def _check_longest(spec: PoolSpec, model: ModelSpec) -> None:
    if spec.max_model_len is not None and spec.max_model_len > model.max_position_embeddings:
        raise ScenarioError(
            f"max_model_len = {spec.max_model_len:,} exceeds max_position_embeddings = "
            f"{model.max_position_embeddings:,} of {model.name}"
        )


def _limit(spec: PoolSpec, model: ModelSpec, ledger: MemoryLedger) -> Limit:
    """Return the longest sequence: as asked for (the ledger has checked that it fits), else the most.

    The words follow from the numbers alone, so that a resolved scenario gives the same ones.
    """
    tokens = spec.max_model_len or min(model.max_position_embeddings, ledger.kv_tokens)
    if tokens == model.max_position_embeddings:
        return Limit(tokens, f"max_position_embeddings of {model.name}")
    if tokens == ledger.kv_tokens:
        blocks = f"{ledger.kv_blocks:,} blocks of {ledger.block_size} tokens"
        return Limit(tokens, f"longest sequence that the KV pool of {blocks} holds")
    return Limit(tokens, "max_model_len of the scenario")


def _half_options(loaded: LoadedScenario) -> dict[str, Any]:
    transfer = loaded.scenario.transfer or TransferSpec.model_validate({})
    return {name: getattr(transfer, name) for name in _OF_THE_HALVES}


def _beside_reserve(limit: Limit, ledger: MemoryLedger, reserved_tokens: int) -> Limit:
    """Cut the longest sequence to what fits beside the tokens that a decode replica keeps free for it."""
    room = ledger.kv_tokens - ledger.block_size - reserved_tokens
    if limit.tokens <= room:
        return limit
    if room < 2:
        raise ScenarioError(
            f"{ledger.kv_tokens:,} KV tokens leave no room beside {reserved_tokens:,} reserved"
        )
    return Limit(room, f"longest sequence beside {reserved_tokens:,} tokens reserved for its answer")


def _latency(
    loaded: LoadedScenario,
    model: ModelSpec,
    gpu: GpuSpec,
    parallel: Parallelism,
    spec: PoolSpec,
    engine: ResolvedEngine,
    profiles: ProfileStore,
    compiled: dict[Any, Any],
    ffn: FfnPool | None,
    speculation: Speculation | None,
) -> TableLatency | LockstepLatency:
    """Return the step latency, compiled once per (GPU, parallelism, dtypes, engine)."""
    if steps_together(spec):
        analytic = loaded.scenario.analytic
        return group_latency(model, gpu, parallel, spec, engine, profiles, analytic, ffn, speculation)
    assert not isinstance(spec.expert_load, ExpertLoadSpec)
    load = spec.expert_load or DEFAULT_EXPERT_LOAD
    dtypes = (spec.weights_dtype, spec.kv_dtype, spec.experts_dtype)
    drafts = speculation and (speculation.drafter, speculation.spec.num_speculative_tokens)
    key = (gpu.name, parallel, dtypes, load, engine.overhead.name, drafts)
    if key not in compiled:
        make = compile_step_latency if speculation is None else partial(plain_latency, speculation)
        compiled[key] = make(
            model,
            gpu,
            parallel,
            weights_dtype=spec.weights_dtype,
            kv_dtype=spec.kv_dtype,
            experts_dtype=spec.experts_dtype,
            expert_load=load,
            overhead=engine.overhead,
            profiles=profiles,
            analytic=loaded.scenario.analytic,
        )
    return compiled[key]


def _facts(
    model: ModelSpec, gpu: GpuSpec, parallel: Parallelism, spec: PoolSpec, max_running: int
) -> PoolFacts:
    gpus = parallel.tp * parallel.pp  # of one attention rank
    stages = weight_bytes_per_stage(
        model,
        parallel,
        spec.weights_dtype,
        redundant_experts=0 if spec.afd else redundant_experts(spec),
        experts_dtype=spec.experts_dtype,
    )
    fullest = max(stages, key=lambda stage: stage.total)
    experts = moe_layers(model)
    return PoolFacts(
        pool=spec.name,
        replicas=spec.replicas * parallel.dp,
        gpus_per_replica=gpus,
        gpu=gpu.name,
        peak_flops=peaks_of(gpu).flops(spec.weights_dtype),
        hbm_bytes_per_s=gpu.hbm_bytes_per_s,
        flops_per_token=flops_per_token(model),
        flops_per_pair=flops_per_pair(model),
        weight_bytes=(fullest.total - fullest.routed_expert) * gpus,
        kv_bytes_per_token=kv_bytes_per_token_per_rank(model, parallel, spec.kv_dtype) * gpus,
        expert_bytes=fullest.routed_expert * gpus,
        expert_share=routed_share(experts[0]) if experts else 0.0,
        expert_ranks=parallel.dp,
        price_per_gpu_hour=spec.price_per_gpu_hour,
        max_running=max_running,
    )


def _assumptions(engine: ResolvedEngine, latency: TableLatency | LockstepLatency) -> tuple[str, ...]:
    names_by_text: dict[str, list[str]] = {}
    for name, text in latency.overhead.provenance.items():
        names_by_text.setdefault(text, []).append(name)
    overhead = [
        f"engine overhead {engine.overhead.name}, {', '.join(names)}: {text}"
        for text, names in names_by_text.items()
    ]
    return (f"engine {engine.label}: {engine.source}", *overhead, *latency.estimated)
