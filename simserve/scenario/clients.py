"""Clients that give up: after how long, and whether the scenario's policies can drop a request."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.errors import ScenarioError
from simserve.scenario.load import LoadedScenario
from simserve.scenario.pool import BuiltPool
from simserve.units import seconds_to_ns


def give_up_ns(it: LoadedScenario) -> int | None:
    """Return how long a client waits for the end of its answer; None: for ever."""
    seconds = it.scenario.workload.give_up_s
    return None if seconds is None else seconds_to_ns(seconds)


def check_give_up(it: LoadedScenario, pools: Sequence[BuiltPool], split: bool) -> None:
    """Refuse `workload.give_up_s` where it cannot be simulated; raises `ScenarioError`."""
    if it.scenario.workload.give_up_s is None:
        return
    with it.blame("workload"):
        if split:
            raise ScenarioError(
                f"give_up_s = {it.scenario.workload.give_up_s:g}: clients that give up are not simulated "
                "with a prefill/decode split; allowed is to leave it out"
            )
        for pool in pools:
            if not hasattr(pool.engine.policy, "drop"):
                raise ScenarioError(
                    f"give_up_s = {it.scenario.workload.give_up_s:g}: the policy of pool {pool.spec.name}, "
                    f"{pool.engine.policy.__name__}, cannot drop a request; it needs a method `drop` "
                    "(simserve.policy.base.Droppable)"
                )
