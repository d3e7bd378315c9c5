"""What `simserve run FILE --check` prints: what would be simulated, whether it fits, its price, its time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simserve.deploy.manifest import manifest_of
from simserve.errors import UserError, together
from simserve.report.words import money
from simserve.units import NS_PER_S

if TYPE_CHECKING:
    from simserve.core.totals import PoolFacts
    from simserve.deploy.build import Deployment
    from simserve.scenario import LoadedScenario


SAMPLE = 300
"""Requests that are simulated to see how long the whole takes."""


def built(it: LoadedScenario) -> dict[str, Deployment]:
    """Return the deployments of a scenario; raises `ScenarioError` with what is wrong in any of them."""
    from simserve.deploy.build import build
    from simserve.scenario.spec import STUDIES

    found: dict[str, Deployment] = {}
    problems: list[UserError] = []
    for name, one in {it.scenario.base_name: it, **it.variants}.items():
        try:
            found[name] = build(one)
        except UserError as error:
            problems.append(error)
    for study in STUDIES:
        if getattr(it.scenario, study) is not None:
            try:
                _REQUIRED[study](it)
            except UserError as error:
                problems.append(error)
    if problems:
        raise together(problems)
    return found


def _require_sweep(it: LoadedScenario) -> None:
    from simserve.study.plan import plan_sweep
    from simserve.study.points import require_sweep

    plan_sweep(it, require_sweep(it))


def _require_capacity(it: LoadedScenario) -> None:
    from simserve.study.capacity import require_capacity

    require_capacity(it)


def _require_size(it: LoadedScenario) -> None:
    from simserve.study.size import require_size

    require_size(it)


def _require_search(it: LoadedScenario) -> None:
    from simserve.study.search import require_search

    require_search(it)


_REQUIRED = {
    "sweep": _require_sweep,
    "capacity": _require_capacity,
    "size": _require_size,
    "search": _require_search,
}


def check_lines(name: str, deployment: Deployment) -> Iterator[str]:
    """Yield the requests of a deployment, its price and, by pool, its shape, memory and room for KV."""
    manifest = manifest_of(deployment, "")
    yield f"{name}: {manifest['trace']['requests']:,} requests would be simulated"
    for line in (*columns_lines(manifest["trace"]), *_price(deployment)):
        yield f"  {line}"
    for pool, built in zip(manifest["pools"], deployment.pools, strict=True):
        shape = ", ".join(f"{key} {pool[key]}" for key in ("replicas", "tp", "pp", "dp"))
        yield f"  pool {pool['name']}: {pool['gpu']}, {shape}: {gpus_words(built.facts)}"
        yield from _memory(pool["ledger"])
        whose = "replica" if pool["dp"] == 1 else "data-parallel rank"
        yield f"    {pool['kv_tokens']:,} KV tokens in each {whose}"
        if "ffn" in pool:
            yield f"    FFN GPUs, {pool['ffn']['gpu_name']}:"
            yield from _memory(pool["ffn"]["ledger"])


def gpus_words(facts: PoolFacts) -> str:
    """Return the GPUs of a pool: `32 GPUs, 8 of them for FFNs alone`."""
    gpus, ffn = _gpus(facts), facts.beside_gpus
    return f"{gpus} GPU{'s' if gpus > 1 else ''}" + (f", {ffn} of them for FFNs alone" if ffn else "")


def _gpus(facts: PoolFacts) -> int:
    return facts.replicas * facts.gpus_per_replica + facts.beside_gpus


def _memory(ledger: list[dict[str, Any]]) -> Iterator[str]:
    for line in ledger:
        yield f"    {line['bytes'] / 1e9:8.2f} GB per GPU: {line['name']}"


def _price(deployment: Deployment) -> Iterator[str]:
    """Yield the price of all GPUs and hour, and of a million output tokens if the load is carried."""
    all_facts = [pool.facts for pool in deployment.pools]
    if any(facts.price_per_gpu_hour is None for facts in all_facts):
        return
    per_hour = sum(
        (facts.price_per_gpu_hour or 0) * facts.replicas * facts.gpus_per_replica
        + facts.beside_price_per_hour
        for facts in all_facts
    )
    gpus, currency = sum(map(_gpus, all_facts)), deployment.loaded.scenario.currency
    line = f"{gpus} GPU{'s cost' if gpus > 1 else ' costs'} {money(per_hour, currency)}/h"
    trace = deployment.trace
    span_ns = int(trace.arrival_ns.max() - trace.arrival_ns.min())
    if deployment.loaded.scenario.workload.closed_loop is None and span_ns > 0:
        tokens_per_hour = float(trace.output_tokens.sum()) / span_ns * NS_PER_S * 3600
        per_million = money(per_hour / tokens_per_hour * 1e6, currency)
        line += f", {per_million} per million output tokens if this load is carried"
    yield line


def duration_line(deployments: Mapping[str, Deployment]) -> str:
    """Return about how long all runs take on this machine, judged by the first requests of each."""
    from simserve.deploy.build import build
    from simserve.scenario.load import changed

    total, asked = 0.0, 0
    replications = next(iter(deployments.values())).loaded.scenario.replications
    for one in deployments.values():
        requests = len(one.trace)
        few = min(requests, SAMPLE)
        sample = build(changed(one.loaded, {"workload.limit": few}))
        start = time.perf_counter()
        sample.simulate()
        total += (time.perf_counter() - start) * requests / few * replications
        asked += requests * replications
    return f"{asked:,} requests in all: about {_clock(total)} here, by the first {SAMPLE} of each run"


def _clock(seconds: float) -> str:
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def columns_lines(trace: Mapping[str, Any]) -> Iterator[str]:
    """Yield which columns of an own file were taken for what, if the reader had to choose."""
    if columns := trace.get("columns"):
        taken = ", ".join(f"{role}: {column}" for role, column in columns.items())
        yield f"{trace['name']}, by its column names: {taken}"
