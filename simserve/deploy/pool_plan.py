"""One pool of a scenario before its step latency is known: GPU, engine, memory, longest sequence, checks."""

from __future__ import annotations

from typing import Any, NamedTuple

from simserve.core import PoolFacts
from simserve.deploy.afd import FfnPool, ffn_pool, with_ffn
from simserve.deploy.combinations import check_pool
from simserve.deploy.engine import ResolvedEngine, check_lengths, resolve_engine
from simserve.deploy.kv_tiers import check_tiers, grouping
from simserve.deploy.moe import check_group, expert_ranks, moe_layers, redundant_experts
from simserve.deploy.speculation import Speculation, speculating, speculation_of
from simserve.engines.base import SplitEngine
from simserve.engines.compatibility import check_engine, check_together
from simserve.engines.presets import memory_rules
from simserve.errors import ScenarioError
from simserve.hardware import GpuSpec, load_gpu
from simserve.latency import ProfileStore
from simserve.latency.kernels.collective import LINK_EFFICIENCY, NETWORK_BYTES_PER_S
from simserve.latency.tables.roofline import peaks_of
from simserve.model import ModelSpec, Parallelism
from simserve.model.dtypes import kv_cache_dtype, weight_types
from simserve.model.kv import kv_bytes_per_token_per_rank
from simserve.model.memory import MemoryLedger, memory_ledger
from simserve.model.memory_lines import MemorySettings
from simserve.model.params import flops_per_pair, flops_per_token
from simserve.model.weights import check_parallelism, weight_bytes_per_stage
from simserve.scenario.load import LoadedScenario
from simserve.scenario.pool_spec import PoolSpec
from simserve.scenario.split_spec import TransferSpec

# Replicas that reach beyond one node, and what is then taken for granted about the links between nodes.

_LINK = f"one network link of {NETWORK_BYTES_PER_S / 1e9:g} GB/s per GPU"


def beyond_node(spec: PoolSpec, gpu: GpuSpec) -> tuple[str, ...]:
    """Return a line for each kind of parallelism that needs more GPUs than a node has; nothing inside one."""
    most = gpu.gpus_per_node
    has = f"a node of {gpu.name} has {most} GPU{'s' if most != 1 else ''}"
    lines = []
    if spec.tp > most:
        lines.append(
            f"tp {spec.tp}, but {has}: all-reduces are taken to run over {_LINK} at {LINK_EFFICIENCY:.0%}, "
            "which was not measured"
        )
    if expert_ranks(spec) > most:
        what = f"ep {spec.ep}" if spec.afd is None else f"{expert_ranks(spec)} FFN GPUs"
        lines.append(
            f"{what}, but {has}: between nodes dispatch and combine go by the tables of their kernel for as "
            f"many ranks and nodes, and where there is none over {_LINK}"
        )
    elif spec.dp * spec.tp > most >= spec.tp:
        lines.append(
            f"dp {spec.dp} x tp {spec.tp}, but {has}: what attention ranks exchange is taken to run over "
            f"{_LINK} between nodes"
        )
    if spec.pp > 1 and spec.tp * spec.pp > most >= spec.tp:
        lines.append(
            f"tp {spec.tp} x pp {spec.pp}, but {has}: stages are taken to hand over as fast between nodes as "
            "inside one"
        )
    return tuple(lines)


# Which policy a pool runs: an engine's own, or one of its halves in a prefill/decode split.


def split_engine(engine: ResolvedEngine) -> SplitEngine:
    """Return the halves of an engine; raises `ScenarioError` if it has none."""
    check_engine(engine.kind, engine.label, {"prefill": "prefill"})
    assert engine.kind.disagg is not None
    return engine.kind.disagg


def policy_of(engine: ResolvedEngine, role: str) -> type:
    """Return the policy of a replica with that role; raises `ScenarioError` if the engine has no halves."""
    if role == "mixed":
        return engine.policy
    halves = split_engine(engine)
    return halves.prefill if role == "prefill" else halves.decode


_OF_THE_HALVES = ("reserved_decode_tokens", "decode_cache")
"""Keys of `transfer` that are settings of a split engine's policies."""


class Limit(NamedTuple):
    """Longest sequence that a replica accepts, and why."""

    tokens: int
    reason: str
    asked: bool = False
    """True if the scenario decides it, not the model or the memory."""


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
    engine = resolve_engine(loaded, index, gpu.hbm_bytes, longest, model, gpu.sm_arch)
    parallel = Parallelism(tp=spec.tp, pp=spec.pp, dp=spec.dp, ep=spec.ep)
    with loaded.blame("pools", index, "weights_dtype"):
        spec = _typed(spec, model)
        weight_types(spec.weights_dtype)
    with loaded.blame("pools", index, "experts_dtype"):
        weight_types(spec.weights_dtype, spec.experts_dtype)
    with loaded.blame("pools", index, "kv_dtype"):
        kv_cache_dtype(spec.kv_dtype)
    with loaded.blame("pools", index):
        check_pool(spec, engine)
        check_group(spec, model)
        check_parallelism(model, parallel, 0 if spec.afd else redundant_experts(spec))
        _check_longest(spec, model)
        _check_experts(spec, model)
        check_tiers(spec, model, engine)
        ffn = ffn_pool(spec, model, gpu, engine.gpu_memory_utilization, redundant_experts(spec), profiles)
        engine = speculating(engine, spec)
        speculation = speculation_of(spec, model, engine, loaded.scenario.seed, loaded.folder)
        ledger = _ledger(model, gpu, parallel, spec, engine, speculation)
        limit = _limit(spec, model, ledger)
        if spec.role == "decode" and split_engine(engine).room_first:
            limit = _beside_reserve(limit, ledger, half_options(loaded)["reserved_decode_tokens"])
        if spec.role == "decode" and speculation is not None:
            limit = _beside_reserve(limit, ledger, speculation.step_slots)
    check_lengths(loaded, index, engine, limit.tokens)
    facts = with_ffn(_facts(model, gpu, parallel, spec, engine.sequences), ffn, spec)
    return PlannedPool(spec, gpu, engine, parallel, ledger, limit, facts, ffn, speculation)


def _typed(spec: PoolSpec, model: ModelSpec) -> PoolSpec:
    """Return the pool with the checkpoint's types where it leaves them to the checkpoint."""
    own = model.checkpoint
    types = {
        "weights_dtype": own.weights_dtype(spec.weights_dtype),
        "kv_dtype": own.kv_dtype(spec.kv_dtype),
    }
    return spec.model_copy(update=types)


def _check_experts(spec: PoolSpec, model: ModelSpec) -> None:
    for name in ("experts_dtype", "moe_backend", "expert_load"):
        if getattr(spec, name) is not None and not has_experts(model):
            raise ScenarioError(f"is not possible: {model.name} has no experts", name, spec.scalar(name))


def has_experts(model: ModelSpec) -> bool:
    """Return True if the model has routed experts."""
    return bool(model.moes)


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
        check_together({"speculation": "...", "windows": groups.words})
    return memory_ledger(
        MemorySettings(
            model,
            gpu,
            parallel,
            weights_dtype=spec.weights_dtype,
            kv_dtype=spec.kv_dtype,
            block_size=engine.block_size,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            max_num_batched_tokens=engine.tokens_per_step(
                spec.max_model_len or model.max_position_embeddings
            ),
            max_num_seqs=engine.sequences,
            max_model_len=spec.max_model_len,
            rules=memory_rules(engine.label),
            redundant_experts=0 if spec.afd else redundant_experts(spec),
            experts_dtype=spec.experts_dtype,
            kv_groups=groups,
            attention_only=spec.afd is not None,
            draft=speculation.memory if speculation is not None else None,
        )
    )


def _check_longest(spec: PoolSpec, model: ModelSpec) -> None:
    if spec.max_model_len is not None and spec.max_model_len > model.max_position_embeddings:
        raise ScenarioError(
            f"exceeds max_position_embeddings = {model.max_position_embeddings:,} of {model.name}",
            "max_model_len",
            spec.max_model_len,
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
    return Limit(tokens, "max_model_len of the scenario", asked=True)


def half_options(loaded: LoadedScenario) -> dict[str, Any]:
    """Return what the scenario's `transfer` says to the policies of a split."""
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


def _peak_flops(spec: PoolSpec, gpu: GpuSpec) -> float:
    """Return the FLOP/s that utilisation is a share of; with a type for each part, the fastest's."""
    given = spec.weights_dtype
    dtypes = [given] if isinstance(given, str) else [dtype for _, dtype in spec.types if dtype]
    return max(peaks_of(gpu).flops(dtype) for dtype in dtypes)


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
        peak_flops=_peak_flops(spec, gpu),
        hbm_bytes_per_s=gpu.hbm_bytes_per_s,
        flops_per_token=flops_per_token(model),
        flops_per_pair=flops_per_pair(model),
        weight_bytes=(fullest.total - fullest.routed_expert) * gpus,
        kv_bytes_per_token=kv_bytes_per_token_per_rank(model, parallel, spec.kv_dtype) * gpus,
        expert_bytes=fullest.routed_expert * gpus,
        expert_share=experts[0].routed_share if experts else 0.0,
        expert_ranks=parallel.dp,
        price_per_gpu_hour=spec.price_per_gpu_hour,
        max_running=max_running,
    )
