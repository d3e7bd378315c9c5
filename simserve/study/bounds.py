"""What no deployment can beat: bounds that rule out a family, or its small sizes, before any simulation.

Every bound is optimistic: vendor peaks, nothing but the work itself, weights read once per step. Memory comes
from the ledger that simulations use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simserve.core import Trace
from simserve.deploy.build import Deployment, Parts
from simserve.deploy.pool import BuiltPool
from simserve.deploy.pool_plan import PlannedPool, plan_pool
from simserve.errors import UserError
from simserve.latency.tables.roofline import BYTES, peaks_of
from simserve.metrics.targets import Target
from simserve.model import ModelSpec
from simserve.model.dtypes import kernel_types
from simserve.model.params import active_params
from simserve.scenario.load import LoadedScenario, changed
from simserve.study.layouts import Family
from simserve.units import NS_PER_S


class Bound(NamedTuple):
    """The least number of units that can do, and why fewer (or any number) cannot."""

    units: int
    reason: str
    impossible: str = ""
    """Not empty: no number of units can do."""
    nearness: float = 0.0
    """How much of the target that rules the family out is within reach, 0 to 1; 0 where it does not fit."""


@dataclass(frozen=True)
class Workload:
    """What the bounds need of a workload."""

    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    period_s: float | None
    """From the first to the last arrival; None where arrivals depend on answers."""
    content: bool
    """Prompts may be found in caches, so computing them is no bound."""


def workload_of(it: LoadedScenario, trace: Trace) -> Workload:
    """Return what the bounds need of a scenario's trace."""
    waits = it.scenario.workload.closed_loop is not None or trace.session is not None
    period_s = float(trace.arrival_ns.max() - trace.arrival_ns.min()) / NS_PER_S
    content = trace.block_ids is not None
    return Workload(trace.prompt_tokens, trace.output_tokens, None if waits else period_s, content)


def bound(
    it: LoadedScenario, family: Family, parts: Parts, work: Workload, targets: Sequence[Target]
) -> Bound:
    """Return the bound of a family."""
    try:
        one = changed(it, family.settings(1))
        model, profiles, _ = parts.of(one)
        pools = [plan_pool(one, i, model, profiles) for i in range(len(family.pools))]
    except UserError as error:
        return Bound(0, "", _without_places(error))
    for target in targets:
        slow = _too_slow(model, pools, work, target)
        if slow is not None:
            return slow
    found = [Bound(1, "one unit is the least")]
    for pool in pools:
        found += _enough_work(model, pool, work) if work.period_s else []
    return max(found)


def _without_places(error: UserError) -> str:
    """Return what an error says, without the place of the pools that nobody wrote."""
    return "; ".join(str(one.at("")) for one in error.problems)


def _too_slow(model: ModelSpec, pools: Sequence[PlannedPool], work: Workload, target: Target) -> Bound | None:
    for key, limit_ms in target.limits:
        if key in ("tpot_ms", "itl_ms"):
            pool = next(pool for pool in pools if pool.spec.role != "prefill")
            step_ms = least_step_s(model, pool) * 1e3
            if step_ms > limit_ms:
                reason = f"a step takes at least {step_ms:.3g} ms to read the weights that a token uses"
                return _missed(reason, target, limit_ms / step_ms)
        if key == "ttft_ms" and not work.content:
            pool = next(pool for pool in pools if pool.spec.role != "decode")
            least_ms = work.prompt_tokens * _flops(model) / _peak(pool) * 1e3
            share = float((least_ms <= limit_ms).mean())
            if share < target.share:
                computed = f"only {share * 100:.3g} % of the prompts can be computed in {limit_ms:g} ms"
                return _missed(f"{computed} at the GPUs' peak", target, share / target.share)
    return None


def _missed(reason: str, target: Target, nearness: float) -> Bound:
    return Bound(0, "", f"{reason} (target: {target.words})", nearness)


def _enough_work(model: ModelSpec, pool: PlannedPool, work: Workload) -> list[Bound]:
    """Return the units at which the pool's replicas keep up with the arrivals."""
    role, period_s = pool.spec.role, work.period_s or 1.0
    prompts = 0.0 if role == "decode" or work.content else float(work.prompt_tokens.sum())
    outputs = work.output_tokens.astype(np.float64)
    answers = 0.0 if role == "prefill" else float(np.maximum(outputs - 1, 0).sum())
    flops = (prompts + answers) * _flops(model) / (_peak(pool) * period_s)
    found = [Bound(_units(flops, pool), f"the work alone keeps {flops:.3g} replicas busy at the GPUs' peak")]
    if role != "prefill" and not work.content and pool.ledger.kv_groups is None:
        # Little's law: tokens held = arrival rate x tokens x time for which each request must hold them.
        held = (work.prompt_tokens + outputs / 2) * np.maximum(outputs - 1, 0) * least_step_s(model, pool)
        kv = float(held.sum()) / period_s / (pool.ledger.kv_tokens * pool.spec.dp)
        found.append(Bound(_units(kv, pool), f"answers hold the KV memory of {kv:.3g} replicas on average"))
    return found


def _units(replicas: float, pool: PlannedPool) -> int:
    return max(1, math.ceil(replicas / pool.spec.replicas - 1e-9))


def least_step_s(model: ModelSpec, pool: PlannedPool | BuiltPool) -> float:
    """Return the least time of a decode step: the weights of one token, read stage by stage, by all ranks."""
    dtypes = _dtypes(pool)
    weights = _multiplied(model) * min(BYTES[dtype] for dtype in dtypes)
    return weights / (pool.spec.tp * pool.spec.dp * pool.gpu.hbm_bytes_per_s)


def out_of_reach(deployment: Deployment) -> list[str]:
    """Return a line per latency limit of the SLO that an idle replica cannot meet for any request.

    The time of a step is the optimistic one of `least_step_s`. Where drafts or FFN GPUs take part there is no
    such bound on the decode side.
    """
    slo = deployment.loaded.scenario.slo
    if slo is None:
        return []
    prompts = _least_step_ms(deployment, "decode")
    decodes = _least_step_ms(deployment, "prefill")
    drafts = any(pool.speculation is not None for pool in deployment.pools)
    floors = {"ttft_ms": prompts, "e2e_ms": prompts}
    floors |= {} if drafts else {"tpot_ms": decodes, "itl_ms": decodes}
    limits = [(key, key, limit) for key, limit in slo.limits().items()]
    limits += [
        (f"percentiles.{key}.{name}", key, limit)
        for key, one in slo.percentiles.items()
        for name, limit in one.items()
    ]
    lines = []
    for name, key, limit in limits:
        floor = floors.get(key, 0.0)
        if limit < floor:
            meant = f": did you mean {limit * 1e3:g}?" if limit * 1e3 >= floor else ""
            lines.append(
                f"slo.{name} {limit:g} is below {floor:.3g} ms, the least time an idle replica takes to read "
                f"the weights that a token uses, so no request can meet it{meant}"
            )
    return lines


def _least_step_ms(deployment: Deployment, other_role: str) -> float:
    """Return the least time of a step over the pools without `other_role`; 0 where there is no bound."""
    pools = [pool for pool in deployment.pools if pool.spec.role != other_role]
    if not pools or any(pool.ffn is not None for pool in pools):
        return 0.0
    return min(least_step_s(deployment.model, pool) for pool in pools) * 1e3


def _dtypes(pool: PlannedPool | BuiltPool) -> set[str]:
    """Return the types of the weights of layers, by their kernels."""
    types = kernel_types(pool.spec.weights_dtype, pool.spec.experts_dtype)
    return {str(dtype) for name, dtype in types if name != "head"}


def _multiplied(model: ModelSpec) -> float:
    """Return the parameters that a token is multiplied with, embedding and head left out."""
    return max(active_params(model) - 2 * model.vocab_size * model.hidden_size, 0.0)


def _flops(model: ModelSpec) -> float:
    return 2 * _multiplied(model)


def _peak(pool: PlannedPool) -> float:
    """Return FLOP/s of a replica, whichever dtype is fastest of those that its weights may use."""
    peaks = peaks_of(pool.gpu)
    return max(peaks.flops(dtype) for dtype in _dtypes(pool)) * pool.spec.tp * pool.spec.pp * pool.spec.dp
