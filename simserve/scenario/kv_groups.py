"""Whether an engine keeps the KV of window layers apart in a pool, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any, NamedTuple

from simserve.errors import ScenarioError
from simserve.model import ModelSpec
from simserve.model.kv_groups import CLOSE, CLOSE_BEFORE_19, KvGroups, kv_groups
from simserve.model.spec import GqaAttention
from simserve.scenario.engine import ResolvedEngine
from simserve.scenario.pool_spec import PoolSpec


class Grouping(NamedTuple):
    """How a pool keeps the KV of a model with windows."""

    groups: KvGroups | None
    """None: every layer keeps every token."""
    assumptions: tuple[str, ...]
    """What the report must say; nothing for a model without windows."""


def grouping(model: ModelSpec, spec: PoolSpec, engine: ResolvedEngine) -> Grouping:
    """Return the groups that the engine makes by default; raises `ScenarioError` for what it would refuse."""
    interval = getattr(engine.params, "prefix_cache_retention_interval", 0)
    if isinstance(interval, int) and interval % engine.block_size:
        raise ScenarioError(
            f"prefix_cache_retention_interval = {interval}, allowed are multiples of block_size "
            f"({engine.block_size})"
        )
    if not _has_spans(model):
        return Grouping(None, ())
    reason = _why_whole(spec, engine)
    budget = engine.tokens_per_step(model.max_position_embeddings)
    groups = None if reason else vllm_groups(model, engine.params.model_dump(), budget)
    if groups is None:
        reason = reason or f"{engine.label} does so for this mix of layers, or it is not modelled"
        return Grouping(None, (f"window and chunk layers keep the KV of all tokens: {reason}",))
    return Grouping(groups, (f"KV of windows is given back as they pass: {groups.words}",))


def vllm_groups(model: ModelSpec, options: Mapping[str, Any], budget: int) -> KvGroups | None:
    """Return the groups of a vLLM with these options that computes up to `budget` tokens in a step."""
    version = options.get("version")
    batches = 2 if version == "0.33" and options.get("async_scheduling") else 1
    return kv_groups(model, batches * budget, CLOSE_BEFORE_19 if version == "0.15" else CLOSE)


def _why_whole(spec: PoolSpec, engine: ResolvedEngine) -> str | None:
    """Return why windows keep everything in this pool whatever the model is; None if they need not."""
    if "windows" not in signature(engine.policy).parameters:
        return f"{engine.label} has no pools for windows here"
    if getattr(engine.params, "disable_hybrid_kv_cache_manager", False):
        return "disable_hybrid_kv_cache_manager"
    if spec.kv_tiers:
        return "KV tiers keep whole blocks"
    if spec.role != "mixed":
        return "KV is handed over in whole blocks"
    return "pipeline stages with groups are not modelled" if spec.pp > 1 else None


def _has_spans(model: ModelSpec) -> bool:
    return any(
        isinstance(attention, GqaAttention) and attention.span != "full"
        for group in model.layers
        for attention in group.attentions
    )
