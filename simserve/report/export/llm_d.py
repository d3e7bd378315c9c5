"""A run as a benchmark report 0.2 of llm-d-benchmark (schema_v0_2.py there, read at commit 331a0f7).

Holds the whole run. Simulated time has no date, so `run.time` states a duration alone; keys that would say
how a load generator was started are left out, since there was none.
"""

from __future__ import annotations

import json
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa

from simserve.metrics.store import StoredRun, canonical_json, read_results
from simserve.report.stored import floats, stamps
from simserve.units import NS_PER_S

VERSION = "0.2"
_MS_PER_S = 1000
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_LATENCIES = {
    "time_to_first_token": ("ttft_ms", "s"),
    "time_per_output_token": ("tpot_ms", "s/token"),
    "inter_token_latency": ("itl_ms", "s/token"),
    "normalized_time_per_output_token": ("normalised_ms", "s/token"),
    "request_latency": ("e2e_ms", "s"),
}
_ROLES = {"mixed": "aggregate", "prefill": "prefill", "decode": "decode"}


def write_llm_d(folder: Path, file: Path) -> Path:
    """Write the run in `folder` to `file`, as JSON if it is named so and else as YAML; return `file`."""
    report = llm_d_report(read_results(folder))
    file.write_text(canonical_json(report) if file.suffix == ".json" else _yaml(report), encoding="utf-8")
    return file


def llm_d_report(run: StoredRun) -> dict[str, Any]:
    """Return the report of a stored run; the same run gives the same report."""
    manifest, whole = run.manifest, run.summary["whole"]
    return {
        "version": VERSION,
        "run": {
            "uid": _hash([manifest, run.summary["counts"], whole]),
            "eid": _hash(run.scenario_yaml),
            "time": {"duration": f"PT{whole['duration_s'] or 0.0:.9f}S"},
            "description": f"{manifest['scenario_name']} (simulated)",
            "keywords": ["simulated", "simserve"],
        },
        "scenario": {"stack": [_component(pool, manifest) for pool in manifest["pools"]], "load": _load(run)},
        "results": {
            "request_performance": {
                "aggregate": {
                    "requests": _requests(run),
                    "latency": _latency(whole),
                    "throughput": _throughput(whole),
                }
            }
        },
    }


def _component(pool: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    tool, _, version = pool["engine"].rpartition("-")
    settings = pool["settings"]
    degrees = {name: pool[name] for name in ("tp", "pp", "dp", "ep")}
    return {
        "metadata": {"label": pool["name"], "cfg_id": _hash([settings, pool["engine_options"]])},
        "standardized": {
            "kind": "inference_engine",
            "tool": tool or pool["engine"],
            "tool_version": f"{version}, simulated by simserve {manifest['simserve_version']}",
            "role": _ROLES[settings["role"]],
            "replicas": pool["replicas"],
            "model": {"name": manifest["model"]["name"]},
            "accelerator": {
                "model": pool["gpu_name"],
                "count": pool["tp"] * pool["pp"] * pool["dp"],
                "parallelism": degrees,
            },
        },
        "native": {"config": {"settings": settings, "engine_options": pool["engine_options"]}},
    }


def _load(run: StoredRun) -> dict[str, Any]:
    manifest, requests = run.manifest, run.requests
    load: dict[str, Any] = {
        "tool": "simserve",
        "tool_version": manifest["simserve_version"],
        "source": "unknown",
        "input_seq_len": _length(requests, "prompt_tokens"),
        "output_seq_len": _length(requests, "output_tokens"),
    }
    closed = manifest["workload"].get("closed_loop")
    arrivals = stamps(requests, "arrival_ns")
    arrivals = arrivals[arrivals >= 0]
    if closed:
        load["concurrency"] = closed.get("concurrency") or closed["users"]
    elif len(arrivals) > 1 and arrivals.max() > arrivals.min():
        load["rate_qps"] = (len(arrivals) - 1) / (int(arrivals.max() - arrivals.min()) / NS_PER_S)
    trace = manifest["trace"]
    return {
        "metadata": {"cfg_id": _hash([trace, manifest["workload"]]), "description": trace["name"]},
        "standardized": load,
        "native": {"config": manifest["workload"]},
    }


def _requests(run: StoredRun) -> dict[str, Any]:
    counts, requests = run.summary["counts"], run.requests
    found: dict[str, Any] = {
        "total": counts["requests"],
        "failures": counts["refused"],
        "incomplete": counts["abandoned"] + counts["unfinished"],
    }
    for key, column in (("input_length", "prompt_tokens"), ("output_length", "output_tokens")):
        values = floats(requests, column)
        statistics = {"mean": values.mean(), "min": values.min(), "max": values.max()}
        found[key] = {"units": "count"} | {name: float(value) for name, value in statistics.items()}
    return found


def _length(requests: pa.Table, column: str) -> dict[str, Any]:
    values = floats(requests, column)
    low, high = int(values.min()), int(values.max())
    kind = "fixed" if low == high else "other"
    return {"distribution": kind, "value": float(values.mean()), "min": low, "max": max(high, 1)}


def _latency(whole: dict[str, Any]) -> dict[str, Any]:
    """Return the distributions in seconds; those without any value are left out."""
    found = {}
    for theirs, (ours, units) in _LATENCIES.items():
        if whole[ours]["count"]:
            values = {name: whole[ours][name] / _MS_PER_S for name in _STATISTICS}
            found[theirs] = {"units": units, **values}
    return found


def _throughput(whole: dict[str, Any]) -> dict[str, Any]:
    if whole["requests_per_s"] is None:
        return {}
    output, total = whole["output_tokens_per_s"], whole["total_tokens_per_s"]
    return {
        "request_rate": {"units": "queries/s", "mean": whole["requests_per_s"]},
        "input_token_rate": {"units": "tokens/s", "mean": total - output},
        "output_token_rate": {"units": "tokens/s", "mean": output},
        "total_token_rate": {"units": "tokens/s", "mean": total},
    }


def _hash(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _yaml(value: Any) -> str:
    from ruamel.yaml import YAML

    text = StringIO()
    yaml = YAML()
    yaml.width = 110
    yaml.dump(value, text)
    return text.getvalue()
