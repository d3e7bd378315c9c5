"""What differs between two runs as their manifests describe them, so that a report can say what was changed.

Settings are compared, not effects: how many KV blocks fit is a result. Settings of an engine are left out
where the engine itself differs, because its defaults go with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_FROM_MEMORY = ("max_model_len", "gpu_memory_utilization")
"""Settings of a pool that the memory or the engine decides unless the scenario does."""
_ASKED = "max_model_len of the scenario"
"""Beginning of `limit_reason` where the scenario, not the memory, limits the longest sequence."""

_OF_A_SPLIT = ("transfer.", "decode_router", "role_switch.")

Facts = dict[tuple[str, str], Any]
"""(name of the setting, pool or empty) to its value."""


@dataclass(frozen=True)
class Change:
    """One setting that differs; None stands for 'not set'."""

    name: str
    pool: str
    """Name of the base's pool, where it has several; else empty."""
    base: Any
    variant: Any


def changes(base: dict[str, Any], variant: dict[str, Any]) -> list[Change]:
    """Return the settings that differ between two manifests, most important first."""
    old: Facts = {("model", ""): _model(base)}
    new: Facts = {("model", ""): _model(variant)}
    pools, others = base.get("pools") or [], variant.get("pools") or []
    if len(pools) == len(others):
        for mine, its in zip(pools, others, strict=True):
            pool = mine["name"] if len(pools) > 1 else ""
            same_engine = mine.get("engine") == its.get("engine")
            old |= _pool_facts(mine, pool, same_engine)
            new |= _pool_facts(its, pool, same_engine)
    else:
        old["pools", ""], new["pools", ""] = (" + ".join(map(_words, some)) for some in (pools, others))
    old |= _other_facts(base)
    new |= _other_facts(variant)
    both = [key for key in dict.fromkeys([*old, *new]) if not _of_one_split(key[0], old, new)]
    old, new = ({key: facts[key] for key in both if key in facts} for facts in (old, new))
    old, new = _whole_where_other_has_none(old, new), _whole_where_other_has_none(new, old)
    keys = dict.fromkeys([*old, *new])
    return [Change(*key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def _of_one_split(name: str, old: Facts, new: Facts) -> bool:
    """Return True for settings of a prefill/decode split that only one of the runs has: the pools say so."""
    if not name.startswith(_OF_A_SPLIT) or ("pools", "") not in old:
        return False
    return not all(any(key[0].startswith(_OF_A_SPLIT) for key in facts) for facts in (old, new))


def _whole_where_other_has_none(facts: Facts, other: Facts) -> Facts:
    """Return facts in which a mapping that the other run does not have, or has as one word, is one setting.

    `placement.kind`, `placement.move_gb_s` and a dozen more against nothing are one change: `placement`.
    A single key says more by its own name: `closed_loop.concurrency`.
    """
    found: Facts = {}
    for (name, pool), value in facts.items():
        top, _, rest = name.partition(".")
        many = sum(_is_below(key, top, pool) for key in facts) > 1
        if rest and many and not any(_is_below(key, top, pool) for key in other):
            found.setdefault((top, pool), {})[rest] = value
        else:
            found[name, pool] = value
    return found


def _is_below(key: tuple[str, str], top: str, pool: str) -> bool:
    return key[1] == pool and key[0].startswith(f"{top}.")


def _model(manifest: dict[str, Any]) -> str | None:
    return (manifest.get("model") or {}).get("name")


def _other_facts(manifest: dict[str, Any]) -> Facts:
    trace = manifest.get("trace") or {}
    facts: Facts = {("router", ""): manifest.get("router"), ("trace", ""): trace.get("name")}
    facts |= {(name, ""): value for name, value in _flat(manifest.get("workload") or {})}
    facts |= {(name, ""): value for name, value in _flat(manifest.get("settings") or {})}
    facts |= {(f"slo.{name}", ""): value for name, value in (manifest.get("slo") or {}).items()}
    return facts


def _pool_facts(pool: dict[str, Any], name: str, same_engine: bool) -> Facts:
    facts: Facts = {("engine", name): pool.get("engine")}
    settings = pool.get("settings") or {}
    facts |= {(key, name): value for key, value in _flat(settings) if key not in _FROM_MEMORY}
    if str(pool.get("limit_reason")).startswith(_ASKED):
        facts["max_model_len", name] = pool.get("max_model_len")
    if same_engine:
        facts["gpu_memory_utilization", name] = pool.get("gpu_memory_utilization")
        facts |= {(key, name): value for key, value in (pool.get("engine_options") or {}).items()}
    return facts


def _words(pool: dict[str, Any]) -> str:
    gpus = pool["replicas"] * pool["tp"] * pool["pp"] * pool.get("dp", 1)
    layout = "".join(
        f", {key.upper()} {pool[key]}" for key in ("tp", "pp", "dp", "ep") if pool.get(key, 1) > 1
    )
    role = (pool.get("settings") or {}).get("role", "mixed")
    does = "" if role == "mixed" else f" for {role}"
    ffn = pool.get("ffn")
    beside = f" + {pool['replicas'] * ffn['gpus']} × {ffn['gpu_name']} for FFN" if ffn else ""
    return f"{gpus} × {pool['gpu_name']}{does}{beside} ({pool['engine']}{layout})"


def _flat(tree: dict[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found = []
    for key, value in tree.items():
        name = f"{above}.{key}" if above else key
        found += _flat(value, name) if isinstance(value, dict) else [(name, value)]
    return found
