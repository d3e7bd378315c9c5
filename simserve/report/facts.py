"""The manifest as the templates expect it: what it does not say is None, or an empty list."""

from __future__ import annotations

from typing import Any

_TOP = ("simserve_version", "command", "seed", "scenario_name", "trace", "model", "router", "fast_forward")
_TRACE = ("name", "format", "sha256", "requests")
_POOL = ("name", "gpu", "gpu_name", "replicas", "tp", "pp", "engine", "weights_dtype", "kv_dtype")
_LIMITS = ("kv_blocks", "kv_groups", "block_size", "max_model_len", "limit_reason")


def complete(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `manifest` in which every key that a page reads exists."""
    full = {**dict.fromkeys(_TOP), "currency": "$", "assumptions": [], "profiles": {}, **manifest}
    if full["trace"]:
        full["trace"] = {**dict.fromkeys(_TRACE), "assumptions": [], "changes": [], **full["trace"]}
    if full["model"]:
        full["model"] = {"name": None, "called": None, **full["model"]}
    full["pools"] = [
        {**dict.fromkeys(_POOL + _LIMITS), "ledger": [], "engine_options": {}, **pool}
        for pool in manifest.get("pools") or []
    ]
    for pool in full["pools"]:
        pool["ledger"] = [{"name": "?", "bytes": 0, "basis": "", **line} for line in pool["ledger"] or []]
    return full


def figure_of(summary: dict[str, Any], key: str) -> float | None:
    """Return a figure of summary.json by its path (`whole.ttft_ms.p99`); over several seeds, their mean.

    None where there is none; a measured run has rates of the whole only.
    """
    if key.startswith("rates.") and "rates" not in summary:
        key = key.replace("rates.", "whole.", 1)
    found: Any = (summary.get("replications") or {"measures": {}})["measures"].get(key)
    if found is not None:
        return found["mean"]
    found = summary
    for name in key.split("."):
        found = None if found is None else found.get(name)
    return found
