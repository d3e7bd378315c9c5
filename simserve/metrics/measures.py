"""The measures by which runs are compared: where each stands, its unit, and which direction is better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from simserve.metrics.utilisation import room_words

# Names of settings as tables and charts show them: `tp` for `pools.0.tp` where no other setting ends so.


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Return what to call each path: its last part, or all of it where another path ends alike."""
    last = {path: path.rpartition(".")[2] for path in paths}
    uses = Counter(last.values())
    return {path: name if uses[name] == 1 else path for path, name in last.items()}


# Figures as the texts of a result say them.


def percent(share: float) -> str:
    """Return a share in percent; never '100 %' for less than all, nor '0 %' for more than nothing."""
    text = ""
    for decimals in (1, 2, 3, 4):
        text = f"{share * 100:.{decimals}f}"
        if not (0 < share < 1) or float(text) not in (0.0, 100.0):
            break
    return f"{trimmed(text)} %"


def trimmed(number: str) -> str:
    """Return a number without zeros that say nothing: `50.0` is 50."""
    return number.rstrip("0").rstrip(".") if "." in number else number


# What limits a run, in a few words; from `limits` as summary.json holds them.


def limited_by(limits: Sequence[dict[str, Any]]) -> str:
    """Return what limits each pool: `compute`, or `prefill: compute; decode: HBM bandwidth`."""
    if not limits:
        return "nothing: no step was done"
    if len(limits) == 1:
        return limit_words(limits[0])
    return "; ".join(f"{limit['pool']}: {limit_words(limit)}" for limit in limits)


def limit_words(limit: dict[str, Any]) -> str:
    """Return what limits one pool: `KV capacity`, or `nothing: at least 4 times this load ...`."""
    if limit["times_load"] is None:
        return str(limit["resource"])
    return f"{limit['resource']}: {room_words(limit['times_load'])}"


def both_words(limit: dict[str, Any]) -> str:
    """Return what keeps requests out beside what the steps spend their time on."""
    return f"admission: {limit['admission']}; steps: {limit['step']}"


Unit = Literal["ms", "number", "share", "bytes"]


class Measure(NamedTuple):
    """One line of a comparison."""

    key: str
    """Path in a run's figures (see `figures_of`)."""
    label: str
    unit: Unit
    better: Literal["lower", "higher", ""] = ""
    """Empty where neither direction is better in itself."""


def _latency(key: str, words: str) -> list[Measure]:
    return [
        Measure(f"whole.{key}.p50", f"{words}, median", "ms", "lower"),
        Measure(f"whole.{key}.p99", f"{words}, p99", "ms", "lower"),
    ]


MEASURES = (
    *_latency("ttft_ms", "TTFT"),
    *_latency("tpot_ms", "TPOT"),
    *_latency("itl_ms", "ITL"),
    *_latency("e2e_ms", "E2E"),
    *_latency("queueing_ms", "queueing"),
    Measure("counts.completed", "requests completed", "number", "higher"),
    Measure("rates.requests_per_s", "requests/s", "number", "higher"),
    Measure("rates.output_tokens_per_s", "output tokens/s", "number", "higher"),
    Measure("rates.total_tokens_per_s", "prompt + output tokens/s", "number", "higher"),
    Measure("steady.slo.attainment", "SLO attainment", "share", "higher"),
    Measure("rates.goodput_requests_per_s", "goodput, requests/s", "number", "higher"),
    Measure("rates.drain_s", "drain after the last arrival, s", "number"),
    Measure("whole.hit_rate", "prefix hit rate", "share", "higher"),
    Measure("whole.preemptions", "preemptions", "number", "lower"),
    Measure("deployment.recomputed_tokens", "recomputed tokens", "number", "lower"),
    Measure("whole.kv_use_mean", "KV use, mean", "share"),
    Measure("deployment.gpus", "GPUs", "number"),
    Measure("deployment.busy", "busy", "share"),
    Measure("deployment.mfu", "MFU", "share"),
    Measure("deployment.tokens_per_step", "tokens per step", "number"),
    Measure("deployment.kv_tokens", "KV capacity, tokens", "number", "higher"),
    Measure("deployment.kv_bytes_per_token", "KV per token", "bytes", "lower"),
    Measure("deployment.kv_bytes_per_token_per_gpu", "KV per token and GPU", "bytes", "lower"),
    Measure("deployment.decode_flop_per_kv_byte", "attention in decode, FLOP per KV byte", "number"),
    Measure("cost_per_million_output_tokens", "cost per million output tokens", "number", "lower"),
)

_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
_LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}

AGAINST_MEASURED = (
    *(
        Measure(f"whole.{key}.{statistic}", f"{words}, {name}", "ms")
        for key, words in _LATENCIES.items()
        for statistic, name in _STATISTICS.items()
    ),
    *(measure._replace(better="") for measure in MEASURES if measure.key.startswith("counts.")),
    Measure("whole.requests_per_s", "requests/s", "number"),
    Measure("whole.output_tokens_per_s", "output tokens/s", "number"),
    Measure("whole.total_tokens_per_s", "prompt + output tokens/s", "number"),
)
"""What a client can see: the measures of a simulation beside a load test (nearer is better)."""

_FROM_MANIFEST = ("kv_bytes_per_token", "kv_bytes_per_token_per_gpu", "decode_flop_per_kv_byte")


def figures_of(summary: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a run with `deployment`: totals over its pools; None where pools disagree."""
    pools, built = summary["pools"], manifest.get("pools") or []
    deployment: dict[str, Any] = {
        "gpus": sum(pool["gpus"] for pool in pools) if pools else None,
        "recomputed_tokens": sum(pool["recomputed_tokens"] for pool in pools) if pools else None,
        "kv_tokens": sum(_kv_tokens(pool) for pool in built) if built else None,
    }
    deployment |= {name: _common(pools, name) for name in ("busy", "mfu", "tokens_per_step")}
    deployment |= {name: _common(built, name) for name in _FROM_MANIFEST}
    return {**summary, "deployment": deployment}


def value_at(figures: dict[str, Any], key: str) -> float | None:
    """Return the figure at a dotted key; None where there is no data."""
    node: Any = figures
    for part in key.split("."):
        node = None if node is None else node.get(part)
    return node


def _kv_tokens(pool: dict[str, Any]) -> int:
    """Return the tokens for which the KV memory of a pool has room: each data-parallel rank has its own."""
    tokens = pool.get("kv_tokens") or (pool.get("kv_blocks") or 0) * (pool.get("block_size") or 0)
    return tokens * (pool.get("dp") or 1) * (pool.get("replicas") or 0)


def _common(pools: list[dict[str, Any]], name: str) -> float | None:
    values = {pool.get(name) for pool in pools}
    return values.pop() if len(values) == 1 else None


# What differs between two runs as their manifests describe them, so that a report can say what was changed.
#
# Settings are compared, not effects: how many KV blocks fit is a result. Settings of an engine are left out
# where the engine itself differs, because its defaults go with it.

_FROM_MEMORY = ("max_model_len", "gpu_memory_utilization")
"""Settings of a pool that the memory or the engine decides unless the scenario does."""

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
    if pool.get("limit_asked"):
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
