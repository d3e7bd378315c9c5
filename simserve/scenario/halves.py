"""Which policy a pool runs: an engine's own, or one of its halves in a prefill/decode split."""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.policy.base import POLICIES
from simserve.policy.split import SPLITS, SplitEngine
from simserve.scenario.engine import ResolvedEngine


def split_engine(engine: ResolvedEngine) -> SplitEngine:
    """Return the halves of an engine; raises `ScenarioError` if it has none."""
    for name in SPLITS:
        if POLICIES.get(name) is engine.policy:
            return SPLITS.get(name)
    known = ", ".join(SPLITS)
    raise ScenarioError(f"{engine.label} cannot be split into prefill and decode; engines that can: {known}")


def policy_of(engine: ResolvedEngine, role: str) -> type:
    """Return the policy of a replica with that role; raises `ScenarioError` if the engine has no halves."""
    if role == "mixed":
        return engine.policy
    halves = split_engine(engine)
    return halves.prefill if role == "prefill" else halves.decode
