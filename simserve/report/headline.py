"""The answer in one sentence."""

from __future__ import annotations

from typing import Any

from simserve.report.format import latency, number, percent

LIMIT_WORDS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}


def headline(summary: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Return what the run says: nothing completed, unstable, or served at these latencies."""
    whole, counts = summary["whole"], summary["counts"]
    gpus = hardware(summary, manifest)
    if not counts["completed"]:
        return f"{gpus} completed none of {number(counts['requests'])} requests."
    one = sum(pool["gpus"] for pool in summary["pools"]) == 1
    s = "s" if one else ""
    served = f"{gpus} serve{s} {number(summary['rates']['requests_per_s'])} requests/s"
    medians = f"median TTFT {latency(whole['ttft_ms']['p50'])}, TPOT {latency(whole['tpot_ms']['p50'])}"
    if summary["stability"]["verdict"] == "unstable":
        start = f"Unstable, the queue grows: {served} and fall{s} behind, {medians}"
    else:
        start = f"{served}: {medians}"
    return f"{start}{_judged(summary.get('slo_verdict'))}{_gave_up(counts)}."


def hardware(summary: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Return the GPUs in words: `2 × H100 SXM + 4 × H200`."""
    built = {pool.get("name"): pool for pool in manifest.get("pools", [])}
    counts: dict[str, int] = {}
    for pool in summary["pools"]:
        one = built.get(pool["name"]) or {}
        ffn = one.get("ffn")
        beside = one["replicas"] * ffn["gpus"] if ffn else 0
        gpu = one.get("gpu_name") or one.get("gpu") or "GPU"
        counts[gpu] = counts.get(gpu, 0) + pool["gpus"] - beside
        if ffn:
            counts[ffn["gpu_name"]] = counts.get(ffn["gpu_name"], 0) + beside
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
    """Return `TTFT ≤ 1.00 s, TPOT ≤ 50.0 ms`."""
    return ", ".join(
        f"{LIMIT_WORDS[name]} ≤ {latency(limits[name])}" for name in LIMIT_WORDS if name in limits
    )


def _gave_up(counts: dict[str, Any]) -> str:
    abandoned = counts.get("abandoned", 0)
    return (
        f"; clients gave up on {percent(abandoned / counts['requests'])} of the requests" if abandoned else ""
    )


def _judged(verdict: dict[str, Any] | None) -> str:
    """Return whether the SLO is met, with the share and the target that decide it."""
    if verdict is None:
        return ""
    shares = f"{percent(verdict['kept'])}, target {percent(verdict['target'])}"
    return f"; SLO {verdict['outcome']}" + (f" ({shares})" if verdict["kept"] is not None else "")
