"""Replay a measured run on the deployment that it names, with its recorded arrivals and lengths.

Taken from the run: engine version, its limits, degrees of parallelism, KV blocks. Everything else is what a
scenario of that engine gets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simserve.core import Result, Status
from simserve.deploy.build import Deployment, build
from simserve.engines.presets import PRESETS
from simserve.errors import ScenarioError
from simserve.router.least import RoundRobinRouter
from simserve.scenario import Scenario
from simserve.sim import Clients, simulate
from simserve.validation.measured_runs import Float64, Int64, MeasuredRun, dtype, gpu_name, model_preset

_PLACEHOLDER = {
    "requests": 1,
    "arrivals": {"kind": "constant", "rate_per_s": 1.0},
    "prompt_tokens": {"kind": "constant", "value": 1},
    "output_tokens": {"kind": "constant", "value": 1},
}
"""A scenario needs a workload; the run's own trace takes its place."""


GIVE_UP_S = 300.0
"""After this long the clients of the overloaded runs gave up on a request (their own time-out)."""


@dataclass(frozen=True)
class Replay:
    """A measured run and its simulation, request by request (times in seconds, NaN: never happened)."""

    run: MeasuredRun
    ttft_s: Float64
    e2e_s: Float64
    result: Result

    @property
    def failed(self) -> int:
        """Requests that the simulated clients gave up on."""
        return int((self.result.status == Status.ABANDONED).sum())


def replay(run: MeasuredRun, overhead: str | None = None, profiles: Sequence[str] = ()) -> Replay:
    """Simulate the run; `overhead` names engine overhead constants in place of the engine's own, `profiles`
    folders of kernel tables to look into first.

    In an overloaded run the clients give up as the measured ones did.
    """
    deployment = deployment_of(run, overhead, profiles)
    give_up_ns = round(GIVE_UP_S * 1e9) if run.overloaded else None
    result = simulate(
        deployment.trace,
        deployment.replicas(),
        RoundRobinRouter(RoundRobinRouter.Params(), seed=0),
        [pool.facts for pool in deployment.pools],
        clients=Clients(give_up_ns=give_up_ns),
    )
    done = result.status == Status.COMPLETED

    def since_arrival(stamp_ns: Int64) -> Float64:
        return np.where(done, stamp_ns - result.arrival_ns, np.nan) / 1e9

    return Replay(run, since_arrival(result.first_token_ns), since_arrival(result.last_token_ns), result)


def deployment_of(run: MeasuredRun, overhead: str | None = None, profiles: Sequence[str] = ()) -> Deployment:
    """Return the run's deployment with its workload; raises `ScenarioError` for what has no counterpart."""
    block_size = run.number("block_size") or 16
    deployment = build(scenario_of(run, overhead, profiles), run.trace(block_size))
    blocks = run.number("gpu_kv_blocks")
    if blocks is None:
        return deployment
    pool = deployment.pools[0]
    measured = replace(pool, ledger=replace(pool.ledger, kv_blocks=blocks))
    return replace(deployment, pools=(measured,))


def scenario_of(run: MeasuredRun, overhead: str | None = None, profiles: Sequence[str] = ()) -> Scenario:
    """Return the scenario of a run."""
    facts = run.facts
    engine: dict[str, Any] = {"preset": engine_preset_of(facts["engine"])}
    for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
        if facts[name]:
            engine[name] = run.number(name)
    if overhead:
        engine["overhead"] = overhead
    pool: dict[str, Any] = {"gpu": gpu_name(facts["gpu"])}
    pool |= {name: run.number(name) or 1 for name in ("tp", "dp", "ep")}
    pool["weights_dtype"] = dtype(facts["weights_dtype"])
    if facts["max_model_len"]:
        pool["max_model_len"] = run.number("max_model_len")
    model = model_preset(facts["model"])
    return Scenario.model_validate(
        {
            "name": run.id,
            "model": model,
            "engine": engine,
            "pools": [pool],
            "profiles": list(profiles),
            "workload": {"synthetic": _PLACEHOLDER},
        }
    )


def engine_preset_of(published: str) -> str:
    """Return the preset of an engine's name and version (`vLLM 0.15.1 (V1 ...)` -> vllm-0.15)."""
    found = re.match(r"(vllm|sglang)\s+v?(\d+\.\d+)", published.strip().lower())
    name = f"{found[1]}-{found[2]}" if found else ""
    for preset in PRESETS:
        if found and (preset == name or preset.startswith(f"{name}.")):
            return preset
    raise ScenarioError(f"no preset for the engine {published!r}; known: {', '.join(PRESETS)}")
