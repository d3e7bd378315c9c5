"""Variants of a scenario: what `compare` says, merged with the scenario itself.

Mappings merge key by key, lists and single values replace, null takes a key away. An engine or a router that
is named anew starts from its own defaults, because the settings of another one would mean nothing to it.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from simserve.errors import ScenarioError
from simserve.scenario.document import SHORT_FORMS, Document, KeyPath
from simserve.scenario.pool_spec import PoolSpec
from simserve.scenario.spec import Scenario

# All ways to share a number of GPUs between prefill and decode: the variants that `ratio: sweep` stands for.
#
# Keeps the scenario's own pools and changes their numbers of replicas; beside them stands the same number of
# GPUs without a split, each replica as one of the decode pool.

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
        raise ScenarioError(
            f"{total} GPUs can be split in {len(splits) + 1} ways", allowed=f"{MOST} ways", place=where
        )
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
            raise ScenarioError(f"a sweep of ratios needs one {role} pool, found {len(pools)}", place=where)
    prefill, decode = sides["prefill"][0], sides["decode"][0]
    if prefill.gpu != decode.gpu:
        raise ScenarioError(f"{prefill.gpu} and {decode.gpu} cannot take each other's place", place=where)
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


OF_THE_COMPARISON = (
    "compare",
    "base_name",
    "published",
    "ratio",
    "replications",
    "sweep",
    "capacity",
    "size",
    "search",
)
"""Keys that are about all runs together."""
FIXED = ("name", "seed", *OF_THE_COMPARISON)
"""Keys that a variant may not change: a comparison has one title and one seed."""

SPLIT_ROLES = ("prefill", "decode")
OF_A_SPLIT = ("transfer", "decode_router", "role_switch")
"""Keys that mean something only beside pools with these roles."""

Plain = dict[str, Any]


def variant_documents(document: Document) -> dict[str, Document]:
    """Return one document per variant of a validated scenario, with the places of its own values."""
    return {name: _variant(document, name) for name in document.data.get("compare") or {}}


def merged(base: Plain, change: Plain) -> Plain:
    """Return `base` with `change` merged into it; neither is altered."""
    result = dict(base)
    for key, value in change.items():
        result.pop(key, None)
        if value is None:
            continue
        here = base.get(key)
        if isinstance(value, dict):
            result[key] = merged(_long_form(key, here) if _merges(key, here, value) else {}, value)
        else:
            result[key] = deepcopy(value)
    return result


def difference(base: Plain, wanted: Plain) -> Plain:
    """Return the smallest change with `merged(base, change) == wanted` (neither holds nulls)."""
    change: Plain = {key: None for key in base if key not in wanted}
    for key, value in wanted.items():
        here = base.get(key)
        if isinstance(value, dict) and isinstance(here, dict):
            inner = difference(here, value)
            whole = not _merges(key, here, inner)
            if whole or inner:
                change[key] = value if whole else inner
        elif key not in base or here != value:
            change[key] = value
    return change


def _merges(key: str, here: Any, value: Plain) -> bool:
    """Return True if the mapping `value` is merged with what the scenario has, False if it replaces it."""
    names_another = key in SHORT_FORMS and SHORT_FORMS[key] in value
    return not names_another and isinstance(_long_form(key, here), dict)


def _long_form(key: str, value: Any) -> Any:
    return {SHORT_FORMS[key]: value} if key in SHORT_FORMS and isinstance(value, str) else value


def _variant(document: Document, name: str) -> Document:
    change = document.data["compare"][name]
    at: KeyPath = ("compare", name)
    for key in FIXED:
        if key in change:
            raise ScenarioError(
                f"a variant runs under the scenario's {key}",
                allowed="any other key of a scenario",
                place=document.where((*at, key)),
            )
    base = {key: value for key, value in document.data.items() if key not in OF_THE_COMPARISON}
    data = merged(base, change)
    data["name"] = f"{base['name']}: {name}"
    if not any(pool.get("role") in SPLIT_ROLES for pool in data.get("pools") or [] if isinstance(pool, dict)):
        for key in OF_A_SPLIT:  # a variant without a split has nothing to move
            if key not in change:
                data.pop(key, None)
    result = Document(document.source, data, variant=name)
    for path in _paths(data):
        own = (*at, *path)
        if path[:1] != ("name",) and _holds(change, path):
            result.places[path] = document.place(own)
            result.written[path] = own
        elif path in document.places:
            result.places[path] = document.places[path]
    return result


def _paths(node: Any, path: KeyPath = ()) -> list[KeyPath]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(inner for key, value in items for inner in _paths(value, (*path, key)))]


def _holds(node: Any, path: KeyPath) -> bool:
    """Return True if the change itself has something at `path`."""
    for part in path:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
