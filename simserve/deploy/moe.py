"""Pools whose attention ranks step together, built: step times, experts and where these lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simserve.deploy.afd import check_afd
from simserve.errors import ScenarioError
from simserve.experts import Placement, contiguous, random_placement
from simserve.experts.balancing import balanced
from simserve.experts.popularity import POPULARITIES, popularity_of
from simserve.experts.rank_load import Spreading
from simserve.experts.state import Change, ExpertPlan, Rebalancing, Replayed, Swaps
from simserve.hardware import GpuSpec
from simserve.latency.lockstep import LockstepLatency
from simserve.model import ModelSpec
from simserve.model.dtypes import weight_format
from simserve.model.layers import MoeFfn
from simserve.scenario.load import find
from simserve.scenario.pool_spec import ExpertLoadSpec, PlacementSpec, PoolSpec
from simserve.sim import GroupSpec
from simserve.units import NS_PER_S

UNIFORM = ExpertLoadSpec.model_validate({"kind": "uniform"})
IN_ORDER = PlacementSpec.model_validate({})


def steps_together(spec: PoolSpec) -> bool:
    """Return True if the pool's replicas are groups of ranks (or say what only a group can have)."""
    asked = (spec.placement, spec.all2all, spec.overlap, spec.afd)
    uneven = isinstance(spec.expert_load, ExpertLoadSpec)
    return spec.dp > 1 or uneven or any(value is not None for value in asked)


def check_group(spec: PoolSpec, model: ModelSpec) -> None:
    """Raise `ScenarioError` for what a group of ranks cannot have."""
    for name in ("placement", "all2all", "overlap", "afd"):
        if getattr(spec, name) is not None and not moe_layers(model):
            raise ScenarioError(f"is not possible: {model.name} has no experts", name, spec.scalar(name))
    if not steps_together(spec):
        return
    if spec.afd is not None:
        check_afd(spec, model)
    if spec.expert_load == "uniform" or isinstance(spec.expert_load, ExpertLoadSpec) or not spec.expert_load:
        return
    if spec.placement is not None:
        raise ScenarioError(
            "was measured for one placement and cannot be combined with placement",
            "expert_load",
            spec.expert_load,
            "a mapping with a kind",
        )


def moe_layers(model: ModelSpec) -> list[MoeFfn]:
    """Return the MoE block of each layer that has one."""
    return [
        ffn
        for group in model.layers
        for ffn in group.ffns
        if isinstance(ffn, MoeFfn)
        for _ in range(group.count)
    ]


def expert_ranks(spec: PoolSpec) -> int:
    """Return the GPUs over which the routed experts of a replica spread."""
    return spec.ep if spec.afd is None else spec.afd.ffn_gpus


def redundant_experts(spec: PoolSpec) -> int:
    """Return the copies per layer beyond the model's own experts."""
    return spec.placement.redundant_experts if spec.placement is not None else 0


def sampled(spec: PoolSpec) -> bool:
    """Return True if the busiest rank is found by sampling; measured loads have it in their rows."""
    return isinstance(spec.expert_load, ExpertLoadSpec) or spec.expert_load in (None, "uniform")


def expert_plan(model: ModelSpec, gpu: GpuSpec, spec: PoolSpec, seed: int, folder: Path) -> ExpertPlan | None:
    """Return popularity and placement of a pool's groups; None where every rank gets the same.

    Raises pydantic's `ValidationError` for wrong settings of the expert load's kind.
    """
    layers = moe_layers(model)
    ranks = expert_ranks(spec)
    load = spec.expert_load if isinstance(spec.expert_load, ExpertLoadSpec) else UNIFORM
    popularity = _popularity(load, folder)
    if ranks == 1 or not layers or not sampled(spec):
        return None
    first = layers[0]
    slots = first.n_routed_experts + first.zero_experts
    shares = popularity.shares(len(layers), slots, first.num_experts_per_tok, load.seed + seed)
    recording = popularity.recording(len(layers), slots)
    changes = _changes(load, shares, seed)
    if recording is not None:
        changes = Replayed(recording, first.num_experts_per_tok, str(load.options.get("path")))
    real = shares[:, : first.n_routed_experts]
    place = spec.placement or IN_ORDER
    groups, nodes = _topology(first, gpu, spec, place)
    rebalancing = None
    if place.interval_steps is not None:
        rebalancing = Rebalancing(
            interval_steps=place.interval_steps,
            window_steps=place.window_steps,
            redundant=place.redundant_experts,
            groups=groups,
            nodes=nodes,
            skip_above=place.skip_above,
            expert_bytes=_expert_bytes(model, first, spec),
            bytes_per_s=place.move_gb_s * 1e9,
            near=place.kind == "topology",
            blocking=place.blocking,
        )
    return ExpertPlan(
        real,
        _placement(place, real, ranks, seed, groups, nodes),
        lambda number: _without_zero_experts(changes(number), first.n_routed_experts),
        rebalancing,
        Spreading(place.per_batch, place.capacity_factor, place.overflow == "reroute"),
        seed,
    )


def _popularity(load: ExpertLoadSpec, folder: Path):
    options = dict(load.options)
    POPULARITIES.get(load.kind)
    if "path" in options:
        path = find(str(options["path"]), folder)
        if path is None:
            raise ScenarioError(
                f"expert_load {load.kind}: no file {options['path']!r} beside the scenario, in the current "
                "folder, or in the data that ships"
            )
        options["path"] = str(path)
    return popularity_of({"kind": load.kind, **options})


def _changes(load: ExpertLoadSpec, shares: Any, seed: int) -> Any:
    drift = load.drift
    if drift is not None:
        every_ns = round(drift.every_s * NS_PER_S)
        return Swaps(shares, drift.share, seed, lambda number: (number + 1) * every_ns)
    if not load.swaps:
        return lambda number: None
    times = [round(swap.at_s * NS_PER_S) for swap in load.swaps]
    shares_of = {swap.share for swap in load.swaps}
    if len(shares_of) > 1:
        raise ScenarioError(f"expert_load.swaps: shares differ ({sorted(shares_of)}); all must be equal")
    return Swaps(
        shares, load.swaps[0].share, seed, lambda number: times[number] if number < len(times) else None
    )


def _without_zero_experts(change: Change | None, experts: int) -> Change | None:
    return None if change is None else Change(change.at_ns, change.shares[:, :experts])


def _topology(moe: MoeFfn, gpu: GpuSpec, spec: PoolSpec, place: PlacementSpec) -> tuple[int, int]:
    """Return expert groups and nodes for a hierarchical placement; (1, 1) for a global one."""
    nodes = -(-expert_ranks(spec) // gpu.gpus_per_node)
    if place.kind == "topology":
        return 1, nodes
    if not place.hierarchical or moe.n_group % nodes:
        return 1, 1
    return moe.n_group, nodes


def _placement(
    place: PlacementSpec, shares: Any, ranks: int, seed: int, groups: int, nodes: int
) -> Placement:
    layers, experts = shares.shape
    if place.kind == "random":
        return random_placement(layers, experts, ranks, seed, place.redundant_experts)
    if place.kind == "contiguous" or place.start == "contiguous":
        return contiguous(layers, experts, ranks, place.redundant_experts)
    return balanced(shares, ranks, place.redundant_experts, groups, nodes, place.kind == "topology")


def _expert_bytes(model: ModelSpec, moe: MoeFfn, spec: PoolSpec) -> int:
    size = weight_format(model.checkpoint.weights_dtype(spec.weights_dtype), spec.experts_dtype).expert_bytes
    return round(3 * model.hidden_size * moe.moe_intermediate_size * size)


def groups_of(spec: PoolSpec, latency: LockstepLatency, plan: ExpertPlan | None) -> list[GroupSpec]:
    """Return one group per replica of the pool."""
    beside = 0 if spec.afd is None else spec.afd.ffn_gpus
    return [
        GroupSpec(f"{spec.name}-{index}", spec.name, latency, plan, beside) for index in range(spec.replicas)
    ]
