"""The answer in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simserve.report.format import latency, number, percent
from simserve.report.load_words import loaded, offered_per_s

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
