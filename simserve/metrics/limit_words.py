"""What limits a run, in a few words; from `limits` as summary.json holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def limited_by(limits: Sequence[dict[str, Any]]) -> str:
    """Return what limits each pool: `compute`, or `prefill: compute; decode: HBM bandwidth`."""
    if not limits:
        return "nothing: no step was done"
    if len(limits) == 1:
        return limit_words(limits[0])
    return "; ".join(f"{limit['pool']}: {limit_words(limit)}" for limit in limits)


def limit_words(limit: dict[str, Any]) -> str:
    """Return what limits one pool: `KV capacity`, or `nothing: about 4 times this load fits`."""
    if limit["times_load"] is None:
        return str(limit["resource"])
    return f"{limit['resource']}: about {limit['times_load']:g} times this load fits"


def both_words(limit: dict[str, Any]) -> str:
    """Return what keeps requests out beside what the steps spend their time on."""
    return f"admission: {limit['admission']}; steps: {limit['step']}"
