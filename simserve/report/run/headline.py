"""The answer in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from simserve.report.compare.effects import code
from simserve.report.compare.settings import Row, in_unit_words, signed
from simserve.report.words import NBSP, latency, loaded, number, offered_per_s, percent

# How far simulated runs are from a measured one, in one sentence.

_FIGURES = {
    "whole.ttft_ms.mean": "mean TTFT",
    "whole.tpot_ms.mean": "mean TPOT",
    "whole.e2e_ms.mean": "mean E2E",
    "whole.requests_per_s": "requests/s",
}
"""What tells most, by key of the comparison."""


def measured_headline(table: dict[str, Any]) -> Markup:
    """Return how far the other runs are from the measured base, in its most telling figures."""
    rows = {row["key"]: row for row in table["measures"]}
    found = [(words, rows[key]) for key, words in _FIGURES.items() if key in rows]
    parts = []
    for name in table["variants"]:
        words = [
            f"{what} {signed(round(100 * share, 1))}{NBSP}%"
            for what, row in found
            if (share := _share(row, name)) is not None
        ]
        text = ", ".join(words) or "no figure in common"
        parts.append(Markup("{}: {}").format(code(name), text))
    return Markup("Against {}, measured, {}.").format(code(table["base"]), Markup("; ").join(parts))


def _share(row: Row, name: str) -> float | None:
    found = row["differences"][name]
    return found and found["relative"]


# Published figures beside ours, in words: for the page and for the terminal.

FAR = 0.2
"""Ours differs notably from a published figure beyond this share of it."""


def published_words(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with `published_text` and `ours_text`."""
    return [
        {
            **row,
            "published_text": _text(row["published"], row["unit"]),
            "ours_text": "–" if row["ours"] is None else _text(row["ours"], row["unit"]),
        }
        for row in rows
    ]


def _text(value: float, unit: str) -> str:
    if unit == "ratio":
        return f"{number(float(value))}{NBSP}×"
    return in_unit_words(float(value), unit)


LIMIT_WORDS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}


_SLO = {"met": "meet", "missed": "miss", "inconclusive": "may not meet"}
"""What GPUs do with the SLO, by the word of the verdict."""


def headline(summary: dict[str, Any], manifest: dict[str, Any], verdict: str = "") -> str:
    """Return what the run says: nothing completed, overloaded, or the SLO, as its `verdict` (a word) is."""
    whole, counts = summary["whole"], summary["counts"]
    gpus, load = gpu_words(summary, manifest), loaded(summary, manifest)
    if not counts["completed"]:
        return f"{gpus} completed none of {number(counts['requests'])} requests."
    one = sum(pool["gpus"] for pool in summary["pools"]) == 1
    medians = f"median TTFT {latency(whole['ttft_ms']['p50'])}, TPOT {latency(whole['tpot_ms']['p50'])}"
    rate = summary["rates"]["requests_per_s"]
    if summary["stability"]["verdict"] == "unstable":
        offered = offered_per_s(summary, manifest.get("workload") or {})
        of = f" of the {number(offered)} offered" if offered else ""
        start = (
            f"Overloaded: {gpus} serve{'s' * one} {number(rate)}{of} requests/s and fall{'s' * one} behind"
        )
    elif verdict:
        verb = _SLO[verdict] + ("es" if verdict == "missed" else "s" if verdict == "met" else "") * one
        start = f"{gpus} {verb} the SLO {load or f'at {number(rate)} requests/s'}"
    else:
        start = f"{gpus} serve{'s' * one} {number(rate)} requests/s"
    return f"{start}: {medians}{_gave_up(counts)}."


def gpu_words(summary: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Return the GPUs by the short names that scenarios use: `2 × H100 SXM + 4 × H200 SXM`."""
    return _counted(
        summary, manifest, lambda pool: gpu_name(pool.get("gpu") or pool.get("gpu_name") or "GPU")
    )


def gpu_name(name: str) -> str:
    """Return a scenario's name of a GPU as people write it: `H100 SXM` for h100_sxm."""
    return name.upper().replace("_", " ") if name == name.lower() else name


def hardware(summary: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Return the GPUs by their vendors' names: `2 × NVIDIA H100 80GB HBM3`."""
    return _counted(summary, manifest, lambda pool: pool.get("gpu_name") or pool.get("gpu") or "GPU")


def _counted(
    summary: dict[str, Any], manifest: dict[str, Any], name_of: Callable[[dict[str, Any]], str]
) -> str:
    built = {pool.get("name"): pool for pool in manifest.get("pools", [])}
    counts: dict[str, int] = {}
    for pool in summary["pools"]:
        one = built.get(pool["name"]) or {}
        ffn = one.get("ffn")
        beside = one["replicas"] * ffn["gpus"] if ffn else 0
        gpu = name_of(one)
        counts[gpu] = counts.get(gpu, 0) + pool["gpus"] - beside
        if ffn:
            its = name_of(ffn if ffn["gpu_name"] != one.get("gpu_name") else one)
            counts[its] = counts.get(its, 0) + beside
    return " + ".join(f"{n} × {gpu}" for gpu, n in counts.items()) or "No GPUs"


def taken(manifest: dict[str, Any]) -> list[str]:
    """Return what every pool was taken to be: `qwen3-32b (from Qwen/Qwen3-32B-FP8), weights fp8 ...`."""
    model = manifest["model"]
    name = model["name"] + (f" (from {model['called']})" if model.get("called") else "")
    return [
        f"{name}, weights {pool['weights_dtype']}, KV cache {pool['kv_dtype']}, on {pool['gpu']} with "
        f"{pool['engine']}"
        for pool in manifest["pools"]
    ]


def limits_in_words(limits: dict[str, float]) -> str:
    """Return `TTFT ≤ 1 s, TPOT ≤ 50 ms`."""
    return ", ".join(
        f"{LIMIT_WORDS[name]} ≤ {latency(limits[name])}" for name in LIMIT_WORDS if name in limits
    )


def _gave_up(counts: dict[str, Any]) -> str:
    abandoned = counts.get("abandoned", 0)
    return (
        f"; clients gave up on {percent(abandoned / counts['requests'])} of the requests" if abandoned else ""
    )


# Deployments as people write them: `4 × B200 SXM`, `2 prefill + 2 decode replicas of 4 × H100 SXM`.

_TYPES = {"weights_dtype": "weights", "kv_dtype": "KV cache"}
_IN_THE_POOLS = frozenset({"gpu", "tp", "pp", "dp", "ep", "layout", "ratio", "split"})
"""Choices of a size that its pools say already."""


def deployment_words(pools: Sequence[Mapping[str, Any]]) -> str:
    """Return replicas and GPUs of pools, as a scenario or study.json has them."""
    sides = [pool for pool in pools if pool.get("role") in ("prefill", "decode")]
    if len(pools) == 2 and len(sides) == 2 and len({(_gpus(p), p["gpu"]) for p in pools}) == 1:
        both = " + ".join(f"{pool['replicas']} {pool['role']}" for pool in pools)
        each, gpu = _gpus(pools[0]), gpu_name(pools[0]["gpu"])
        return f"{both} {gpu}" if each == 1 else f"{both} replicas of {each} × {gpu}"
    return " + ".join(_pool(pool) for pool in pools)


def is_one_gpu(pools: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if these pools are a single GPU, which takes a verb in the singular."""
    return len(pools) == 1 and _gpus(pools[0]) * pools[0]["replicas"] == 1


def _pool(pool: Mapping[str, Any]) -> str:
    each, replicas, gpu = _gpus(pool), pool["replicas"], gpu_name(pool["gpu"])
    does = "" if pool.get("role", "mixed") == "mixed" else f" for {pool['role']}"
    if each == 1 or replicas == 1:
        return f"{each * replicas} × {gpu}{does}"
    return f"{replicas} replicas of {each} × {gpu}{does}"


def _gpus(pool: Mapping[str, Any]) -> int:
    return (pool.get("tp") or 1) * (pool.get("pp") or 1) * (pool.get("dp") or 1)


def types_words(settings: Mapping[str, Any]) -> str:
    """Return the data types that were chosen: ` with fp8 weights`; empty if none was."""
    found = [f"{settings[key]} {words}" for key, words in _TYPES.items() if key in settings]
    return f" with {' and '.join(found)}" if found else ""


def options_words(settings: Mapping[str, Any]) -> str:
    """Return the other choices: `max_num_batched_tokens 2,048`."""
    left = {name: value for name, value in settings.items() if name not in {*_TYPES, *_IN_THE_POOLS}}
    return ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in left.items()
    )
