"""All ways to share a number of GPUs between prefill and decode: the variants that `ratio: sweep` stands for.

Keeps the scenario's own pools and changes their numbers of replicas; beside them stands the same number of
GPUs without a split, each replica as one of the decode pool.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from simserve.errors import ScenarioError
from simserve.scenario.document import Document
from simserve.scenario.pool_spec import PoolSpec
from simserve.scenario.spec import Scenario

MOST = 40
"""Splits that one sweep may have."""
AGGREGATED = "aggregated"


def with_ratios(document: Document, scenario: Scenario) -> Document:
    """Return a scenario with a variant for every split of its GPUs; raises `ScenarioError`."""
    where = document.where(("ratio",))
    prefill, decode = _sides(scenario, where)
    own = (prefill.replicas, decode.replicas)
    sizes = (_gpus(prefill), _gpus(decode))
    total = own[0] * sizes[0] + own[1] * sizes[1]
    splits = [split for split in splits_of(total, *sizes) if split != own]
    if len(splits) >= MOST:
        raise ScenarioError(f"{where}: {total} GPUs can be split in {len(splits) + 1} ways, allowed: {MOST}")
    data = {key: deepcopy(value) for key, value in document.data.items() if key != "ratio"}
    data.setdefault("base_name", name_of(own))
    variants = data.get("compare") or {}
    made = {name_of(split): {"pools": _pools(document.data["pools"], scenario, split)} for split in splits}
    made[AGGREGATED] = {"pools": [_aggregated(document.data["pools"], scenario, total // sizes[1])]}
    data["compare"] = made | variants
    places = {path: place for path, place in document.places.items() if path[:1] != ("ratio",)}
    places[("compare",)] = places.get(("compare",), document.place(("ratio",)))
    return Document(document.source, data, places, document.variant, dict(document.written))


def splits_of(gpus: int, prefill_gpus: int, decode_gpus: int) -> list[tuple[int, int]]:
    """Return (prefill, decode) replicas of those sizes that take all GPUs, or leave too few for one more."""
    found = []
    for prefill in range(1, gpus // prefill_gpus + 1):
        left = gpus - prefill * prefill_gpus
        decode = left // decode_gpus
        if decode and left - decode * decode_gpus < min(prefill_gpus, decode_gpus):
            found.append((prefill, decode))
    return found


def name_of(split: tuple[int, int]) -> str:
    """Return `1p3d`."""
    return f"{split[0]}p{split[1]}d"


def _sides(scenario: Scenario, where: str) -> tuple[PoolSpec, PoolSpec]:
    """Return the prefill and the decode pool, which must be one each and of one kind of GPU."""
    sides = {role: [pool for pool in scenario.pools if pool.role == role] for role in ("prefill", "decode")}
    for role, pools in sides.items():
        if len(pools) != 1:
            raise ScenarioError(f"{where}: a sweep of ratios needs one {role} pool, found {len(pools)}")
    prefill, decode = sides["prefill"][0], sides["decode"][0]
    if prefill.gpu != decode.gpu:
        raise ScenarioError(f"{where}: {prefill.gpu} and {decode.gpu} cannot take each other's place")
    return prefill, decode


def _gpus(pool: PoolSpec) -> int:
    return pool.tp * pool.pp * pool.dp + (pool.afd.ffn_gpus if pool.afd else 0)


def _pools(written: list[Any], scenario: Scenario, split: tuple[int, int]) -> list[Any]:
    """Return the pools as they were written, with other numbers of replicas."""
    replicas: dict[str, int] = dict(zip(("prefill", "decode"), split, strict=True))
    pools = []
    for plain, pool in zip(written, scenario.pools, strict=True):
        pools.append({**deepcopy(plain), "replicas": replicas.get(pool.role, pool.replicas)})
    return pools


def _aggregated(written: list[Any], scenario: Scenario, replicas: int) -> dict[str, Any]:
    """Return a pool of replicas like the decode pool's that do both; its own engine options are left out."""
    plain = next(p for p, pool in zip(written, scenario.pools, strict=True) if pool.role == "decode")
    kept = {key: deepcopy(value) for key, value in plain.items() if key not in ("role", "engine", "name")}
    return {"name": "all", **kept, "replicas": replicas}
