"""What a scenario asks for, as far as it may not combine: see `engines.compatibility`."""

from __future__ import annotations

from typing import Any

from simserve.deploy.engine import ResolvedEngine
from simserve.engines.compatibility import Feature, check_engine, check_together
from simserve.scenario.pool_spec import ExpertLoadSpec, PoolSpec

_WHAT_RANKS_HAVE = ("placement", "all2all", "overlap")


def features_of(spec: PoolSpec) -> dict[Feature, Any]:
    """Return the features that a pool asks for, each with its value; None where that is a mapping or list."""
    asked: dict[Feature, Any] = {}
    for key in ("pp", "ep"):
        if getattr(spec, key) > 1:
            asked[key] = spec.scalar(key)
    for key in ("all2all", "overlap", "afd", "kv_tiers", "speculation"):
        if getattr(spec, key):
            asked[key] = spec.scalar(key)
    uneven = isinstance(spec.expert_load, ExpertLoadSpec)
    if spec.afd is None and (spec.dp > 1 or uneven or any(getattr(spec, key) for key in _WHAT_RANKS_HAVE)):
        asked["ranks"] = spec.dp
    if spec.role == "prefill":
        asked["prefill"] = spec.role
    if spec.role == "decode":
        asked["decode"] = spec.role
    return asked


def check_pool(spec: PoolSpec, engine: ResolvedEngine) -> None:
    """Refuse what a pool cannot have at once, or not with its engine; raises `ScenarioError`."""
    asked = features_of(spec)
    check_together(asked)
    check_engine(engine.kind, engine.label, asked)
