"""The step latency of a pool: of one replica, or of ranks that step together."""

from __future__ import annotations

from functools import partial
from typing import Any

from simserve.deploy.afd import afd_latency
from simserve.deploy.engine import kernel_settings
from simserve.deploy.moe import redundant_experts, sampled, steps_together
from simserve.deploy.pool_plan import PlannedPool
from simserve.deploy.speculation import group_latency as verifying_group_latency
from simserve.deploy.speculation import plain_latency
from simserve.latency import ProfileStore, TableLatency, compile_step_latency
from simserve.latency.compile import Analytic, compile_lockstep_latency
from simserve.latency.kernels.experts import ExpertLoad
from simserve.latency.lockstep import LockstepLatency
from simserve.latency.overlap import NO_OVERRIDES
from simserve.model import ModelSpec
from simserve.scenario.load import LoadedScenario
from simserve.scenario.pool_spec import ExpertLoadSpec

DEFAULT_EXPERT_LOAD: ExpertLoad = "uniform"


def step_latency(
    loaded: LoadedScenario,
    model: ModelSpec,
    planned: PlannedPool,
    profiles: ProfileStore,
    compiled: dict[Any, Any],
) -> TableLatency | LockstepLatency:
    """Return the step latency, compiled once per (GPU, parallelism, dtypes, engine)."""
    spec, engine, speculation = planned.spec, planned.engine, planned.speculation
    if steps_together(spec):
        return _group_latency(model, planned, profiles, loaded.scenario.analytic)
    assert not isinstance(spec.expert_load, ExpertLoadSpec)
    load = spec.expert_load or DEFAULT_EXPERT_LOAD
    dtypes = (spec.weights_dtype, spec.kv_dtype, spec.experts_dtype)
    drafts = speculation and (speculation.drafter, speculation.spec.num_speculative_tokens)
    kernels = (*dtypes, spec.moe_backend, spec.max_model_len)
    key = (planned.gpu.name, planned.parallel, kernels, load, engine.overhead.name, drafts)
    if key not in compiled:
        make = compile_step_latency if speculation is None else partial(plain_latency, speculation)
        settings = kernel_settings(spec, load, profiles, loaded.scenario.analytic)
        settings["max_model_len"] = spec.max_model_len
        compiled[key] = make(
            model,
            planned.gpu,
            planned.parallel,
            overhead=engine.overhead,
            **settings,
        )
    return compiled[key]


def _group_latency(
    model: ModelSpec, planned: PlannedPool, profiles: ProfileStore, analytic: Analytic
) -> LockstepLatency:
    """Return the step times of one group."""
    spec, engine, speculation = planned.spec, planned.engine, planned.speculation
    load: ExpertLoad = "uniform" if sampled(spec) else spec.expert_load  # pyright: ignore
    solve_us = spec.placement.solve_us if spec.placement and spec.placement.per_batch else 0.0
    settings = kernel_settings(spec, load, profiles, analytic)
    if planned.ffn is not None:
        return afd_latency(
            model,
            planned.gpu,
            planned.ffn,
            spec,
            engine,
            settings,
            redundant_experts=redundant_experts(spec),
            solve_us=solve_us,
        )
    make = compile_lockstep_latency if speculation is None else partial(verifying_group_latency, speculation)
    return make(
        model,
        planned.gpu,
        planned.parallel,
        all2all=spec.all2all or "deepep",
        redundant_experts=redundant_experts(spec),
        overlap=spec.overlap or NO_OVERRIDES,
        solve_us=solve_us,
        overhead=engine.overhead,
        **settings,
    )
