"""What every study says of the scenario that it studies, so that its page can name it."""

from __future__ import annotations

from typing import Any

from simserve.scenario.load import LoadedScenario


def facts_of(it: LoadedScenario) -> dict[str, Any]:
    """Return name, model, engine, pools, currency and seed, as study.json holds them."""
    scenario = it.scenario
    return {
        "name": scenario.name,
        "model": scenario.model,
        "engine": scenario.engine.preset or scenario.engine.policy,
        "pools": [
            {"name": pool.name, "role": pool.role, "gpu": pool.gpu, "replicas": pool.replicas}
            | {name: getattr(pool, name) for name in ("tp", "pp", "dp", "ep")}
            for pool in scenario.pools
        ],
        "currency": scenario.currency,
        "seed": scenario.seed,
    }
