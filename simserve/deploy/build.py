"""The one place where the parts are wired together: scenario -> trace, replicas, router -> Result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from simserve.core import Result, Trace
from simserve.deploy.pool import BuiltPool, build_pool
from simserve.deploy.pool_plan import beyond_node
from simserve.deploy.router import build_router, check_router, router_assumptions
from simserve.deploy.split import (
    balance_of,
    build_split,
    check_roles,
    check_split,
    is_split,
    split_assumptions,
)
from simserve.deploy.workload import build_trace, check_give_up, give_up_ns
from simserve.errors import UserError
from simserve.latency.tables.profiles import ProfileStore
from simserve.metrics import Slo, Summary, summarize
from simserve.model import ModelSpec, load_model
from simserve.scenario.load import LoadedScenario, loaded, portable
from simserve.scenario.spec import Scenario
from simserve.sim import Clients, Progress, ReplicaSpec, simulate
from simserve.sim.step_log import StepLog


@dataclass(frozen=True)
class Deployment:
    """Everything that one simulated run needs, and what its outputs must say about it."""

    loaded: LoadedScenario
    trace: Trace
    model: ModelSpec
    pools: tuple[BuiltPool, ...]
    profiles: ProfileStore

    def simulate(self, progress: Progress | None = None, step_log: StepLog | None = None) -> Result:
        """Run the scenario once, with fresh policies and a fresh router; `step_log` records its steps."""
        scenario = self.loaded.scenario
        for pool in self.pools:
            pool.latency.forget()  # what an earlier run of this deployment booked
        closed_loop = scenario.workload.closed_loop
        replicas = self.replicas()
        if is_split(self.loaded):
            router = build_split(self.loaded, self.pools, self.trace)
        else:
            router = build_router(self.loaded, self.trace, self.pools[0].engine.block_size)
        return simulate(
            self.trace,
            replicas,
            router,
            [pool.facts for pool in self.pools],
            clients=Clients(closed_loop.clients if closed_loop else None, give_up_ns(self.loaded)),
            fast_forward=scenario.fast_forward,
            progress=progress,
            step_log=step_log,
        )

    def replicas(self) -> list[ReplicaSpec]:
        """Return the replicas of all pools, each with a fresh policy."""
        made = []
        for index, pool in enumerate(self.pools):
            with self.loaded.blame("pools", index):  # policies refuse what they do not model
                made += pool.replicas(self.trace)
        return made

    @property
    def router_assumptions(self) -> tuple[str, ...]:
        """What was taken for granted about the router, in words; nothing if there is nothing to choose."""
        if sum(pool.spec.replicas for pool in self.pools) == 1:
            return ()
        return router_assumptions(self.loaded, self.trace, self.pools[0].engine.block_size)

    @property
    def split_assumptions(self) -> tuple[str, ...]:
        """What was taken for granted about a prefill/decode split, in words."""
        return split_assumptions(self.loaded, self.pools, self.trace)

    @cached_property
    def balance(self) -> str:
        """What the balance formula says of a split, in a sentence; "" where it says nothing."""
        return balance_of(self.loaded, self.pools, self.trace)

    @property
    def slo(self) -> Slo | None:
        """The latency targets, as the metrics take them."""
        return slo_of(self.loaded.scenario)

    def summarize(self, result: Result) -> Summary:
        """Return the summary of a run of this deployment."""
        closed = self.loaded.scenario.workload.closed_loop is not None
        summary = summarize(result, self.slo, closed_loop=closed)
        return replace(summary, warnings=[*summary.warnings, *self.warnings])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before the result: links between nodes that are taken for granted."""
        lines = [
            f"pool {pool.spec.name}: {line}" if len(self.pools) > 1 else line
            for pool in self.pools
            for line in beyond_node(pool.spec, pool.gpu)
        ]
        return tuple(dict.fromkeys(lines))


class Parts:
    """What the builds of related scenarios share: models, kernel tables and compiled step latencies."""

    def __init__(self) -> None:
        self._models: dict[Any, ModelSpec] = {}
        self._stores: dict[Any, ProfileStore] = {}
        self._compiled: dict[Any, dict[Any, Any]] = {}

    def of(self, it: LoadedScenario) -> tuple[ModelSpec, ProfileStore, dict[Any, Any]]:
        """Return the model, the profiles, and the step latencies compiled so far, of a scenario."""
        scenario = it.scenario
        model_key, store_key = (it.folder, scenario.model), (it.folder, scenario.profiles)
        if model_key not in self._models:
            self._models[model_key] = _model(it)
        if store_key not in self._stores:
            files = [it.file(name, ("profiles", i)) for i, name in enumerate(scenario.profiles)]
            self._stores[store_key] = ProfileStore(files)
        compiled = self._compiled.setdefault((model_key, store_key, scenario.analytic), {})
        return self._models[model_key], self._stores[store_key], compiled


def slo_of(scenario: Scenario) -> Slo | None:
    """Return the targets of a scenario, as the metrics take them."""
    slo = scenario.slo
    if slo is None:
        return None
    percentiles = {
        str(name): {str(p): ms for p, ms in asked.items()} for name, asked in slo.percentiles.items()
    }
    return Slo(**slo.limits(), attainment=slo.attainment, percentiles=percentiles)


def build(
    source: LoadedScenario | Scenario, trace: Trace | None = None, parts: Parts | None = None
) -> Deployment:
    """Wire a scenario; raises `UserError` with place and value for everything that does not fit together.

    `trace` is the scenario's workload where somebody has built it already, and `parts` what earlier builds
    left behind (one run at a time may use a step latency). Variants are left alone.
    """
    it = source if isinstance(source, LoadedScenario) else loaded(source)
    check_router(it)
    check_roles(it)
    trace = trace or build_trace(it)
    model, profiles, compiled = (parts or Parts()).of(it)
    pools = tuple(build_pool(it, i, model, profiles, compiled) for i in range(len(it.scenario.pools)))
    if is_split(it):
        check_split(it, pools)
    check_give_up(it, pools)
    return Deployment(it, trace, model, pools, profiles)


def build_all(source: LoadedScenario | Scenario) -> dict[str, Deployment]:
    """Wire a scenario and its variants, by name, the scenario first; an equal workload is built once.

    Raises `UserError` with a line per problem of the scenario and of its variants.
    """
    it = source if isinstance(source, LoadedScenario) else loaded(source)
    try:
        base = build(it)
        return {it.scenario.base_name: base} | {
            name: build(one, base.trace if one.scenario.workload == it.scenario.workload else None)
            for name, one in it.variants.items()
        }
    except UserError as error:
        from simserve.deploy.problems import of_build

        raise of_build(it, error) from error


def run_scenario(scenario: Scenario, progress: Progress | None = None) -> Result:
    """Build and simulate a scenario made in Python; relative names start from the current folder."""
    if not isinstance(scenario, Scenario):
        raise TypeError(
            f"run_scenario takes a Scenario, not {type(scenario).__name__}; "
            "simserve.run takes files and mappings too"
        )
    return build(scenario).simulate(progress)


def _model(it: LoadedScenario) -> ModelSpec:
    name = it.scenario.model
    is_path = name.endswith(".json") or Path(name).is_dir() or (it.folder / name).is_dir()
    with it.blame("model"):
        if not is_path:
            return load_model(name)
        spec = load_model(str(it.file(name, ("model",))))
    return replace(spec, source=f"configuration {portable(name, it.folder)}")
