"""The names of a scenario's GPUs and engines, whatever people call them, as this project calls them.

Done once, when a scenario is validated, so that everything after it compares one name per thing. The model
keeps the name that it was given: a quantised release says more than its preset does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from simserve.errors import ScenarioError
from simserve.hardware import gpu_called
from simserve.policy.presets import engine_called
from simserve.scenario.component_spec import EngineSpec
from simserve.scenario.files import find
from simserve.scenario.pool_spec import PoolSpec
from simserve.scenario.spec import Scenario

Blame = Callable[..., AbstractContextManager[None]]
"""Puts the place of a path before the message of a mistake raised inside."""


def with_our_names(scenario: Scenario, folder: Path, blame: Blame) -> Scenario:
    """Return the scenario with the names of this project; raises `ScenarioError` for one that is unclear."""
    profiles = [found for name in scenario.profiles if (found := find(name, folder))]

    def gpu(name: str, *path: str | int) -> str:
        with blame(*path):
            return gpu_called(name, profiles)

    def prices(named: dict[str, Any], *path: str) -> dict[str, Any]:
        ours: dict[str, Any] = {}
        for name, price in named.items():
            one = gpu(name, *path, name)
            with blame(*path, name):
                if one in ours:
                    raise ScenarioError(f"{name!r} is {one}, which has a price already")
            ours[one] = price
        return ours

    changes: dict[str, Any] = {}
    with blame("engine", "preset"):
        changes["engine"] = _engine(scenario.engine)
    changes["pools"] = tuple(_pool(pool, i, gpu, blame) for i, pool in enumerate(scenario.pools))
    for study, key in (("size", "catalogue"), ("sweep", "prices"), ("search", "prices")):
        if (asked := getattr(scenario, study)) is not None:
            changes[study] = asked.model_copy(update={key: prices(getattr(asked, key), study, key)})
    return scenario.model_copy(update=changes)


def _pool(pool: PoolSpec, index: int, gpu: Callable[..., str], blame: Blame) -> PoolSpec:
    changes: dict[str, Any] = {"gpu": gpu(pool.gpu, "pools", index, "gpu")}
    if pool.afd is not None and pool.afd.gpu is not None:
        named = gpu(pool.afd.gpu, "pools", index, "afd", "gpu")
        changes["afd"] = pool.afd.model_copy(update={"gpu": named})
    with blame("pools", index, "engine", "preset"):
        changes["engine"] = _engine(pool.engine)
    return pool.model_copy(update=changes)


def _engine(engine: EngineSpec) -> EngineSpec:
    if engine.preset is None:
        return engine
    return engine.model_copy(update={"preset": engine_called(engine.preset)})
