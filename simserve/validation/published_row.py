"""From a row of published results to a scenario: its deployment and its load, or why it cannot be run.

Only what a row says is used; what it leaves open is what a scenario of the engine gets by default, and each
guess is named. Versions without a preset are run as the nearest one that has, in words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simserve.engines.presets import PRESETS
from simserve.errors import ScenarioError, UserError
from simserve.hardware import load_gpu
from simserve.model import load_model
from simserve.paths import data_dir
from simserve.scenario import Scenario
from simserve.validation.measured_runs import dtype, gpu_name, model_preset
from simserve.validation.published_servers import (
    TRTLLM_POLICY,
    all_at_start,
    bench,
    options_of,
    server_of,
    sglang_memory_share,
    version_of,
)

# Rows of published results from a prefill/decode split: the two sides and the links between them.

Row = Mapping[str, str]

_SIDE = re.compile(r"(\d+)([PD]) TP(\d+)")
_LINKS = re.compile(r"(\d+)x(\d+)G")
_KINDS = ("100", "200", "400", "800")
"""Line rates of a card, in Gb/s, that a scenario can name."""


class Split(NamedTuple):
    """Replicas and tensor parallelism of both sides."""

    prefill: tuple[int, int]
    decode: tuple[int, int]


def split_of(row: Row) -> Split | None:
    """Return the sides of a row that says them plainly (`1P TP8`, `1D TP8`); None for all others."""
    sides = [_SIDE.fullmatch(row.get(f"{name}_config") or "") for name in ("prefill", "decode")]
    if row.get("mode") != "disagg" or None in sides:
        return None
    found = [(int(side[1]), int(side[3])) for side in sides if side is not None]
    return Split(*found)


def split_pools(split: Split, pool: dict[str, Any], row: Row) -> dict[str, Any]:
    """Return the pools and the transfer of a scenario; `pool` is what both sides have in common."""
    links = _LINKS.search(row.get("scheduler_settings") or "")
    named = links is not None and links[2] in _KINDS
    transfer = {"link": f"rdma_{links[2]}g", "links": int(links[1])} if links is not None and named else {}
    return {
        "pools": [
            {**pool, "name": role, "role": role, "replicas": replicas, "tp": tp}
            for role, (replicas, tp) in split._asdict().items()
        ],
        "transfer": transfer,
    }


REQUESTS_PER_CLIENT = 10
"""Requests of a closed loop per client where a row does not say (InferenceX does so)."""
TRTLLM_CACHE_SHARE = 0.95
"""Share of free memory for the KV cache in TensorRT-LLM's tables "in many cases" (its default is 0.90)."""
TRTLLM_GATHERED_RANKS = 8
"""Ranks up to which its experts get tokens by all-gather and reduce-scatter: the picks of a token (8 in
DeepSeek-R1 and Qwen3; gpt-oss picks 4, on at most 4 ranks here). MNNVL or DeepEP need more ranks."""
OFFLINE_REQUESTS = 1000
"""Requests that are all there at the start, where a row does not say (the fewest of its tables)."""
FITTED = data_dir("scenarios") / "overheads" / "vllm-0.15.yaml"
"""Of vLLM 0.15.1's API server, fitted to two runs of its own (see the file)."""
_AT_ONCE: dict[str, Any] = {"kind": "constant", "rate_per_s": 1.0}
"""Arrivals of a closed loop: not used."""
_SPREAD_8_TO_10 = re.compile(r"0\.8-1\.0")
_SPREAD_15_PERCENT = re.compile(r"\+-15 ?%")


class NotSimulatable(UserError):
    """A row asks for something that cannot be run here; the message says what."""


class Setup(NamedTuple):
    """A row as a scenario."""

    scenario: Scenario
    assumed: tuple[str, ...]


def setup_of(row: Row, overhead: str | None = None, profiles: Sequence[str] = ()) -> Setup:
    """Return the row's scenario; raises `NotSimulatable` with the reason."""
    if row.get("simulatable") != "yes":
        raise NotSimulatable(f"marked not simulatable: {row.get('missing') or 'no reason given'}")
    split = split_of(row)
    if row.get("mode") != "agg" and split is None:
        raise NotSimulatable(f"mode {row.get('mode')!r}: only whole engines (agg) and plain splits are run")
    if row.get("spec_decode") not in ("", "none", None):
        raise NotSimulatable(f"speculative decoding ({row['spec_decode']})")
    assumed: list[str] = []
    server = server_of(row)
    if server is not None:
        row = {**row, **server.columns}
        assumed.append(f"{server.what}: as InferenceX's script sets them")
    try:
        pool = _pool(row, assumed) | (server.pool if server else {})
        share = sglang_memory_share(row, load_gpu(pool["gpu"]).hbm_bytes)
        if share is not None:
            pool["gpu_memory_utilization"] = share
            assumed.append("share of memory by the rule of the row's release of SGLang")
        engine = {"preset": _engine(row, assumed), **options_of(row, assumed)}
        engine |= server.options if server else {}
        if _is_trtllm(row) and all_at_start(row):
            engine |= _as_benched(row, pool, assumed)
        plain = {
            "name": row["row_id"],
            "model": model_preset(row["model"]),
            "engine": engine | _cost(row, overhead, assumed),
            **(split_pools(split, pool, row) if split else {"pools": [pool]}),
            "workload": _workload(row, assumed),
            "profiles": list(profiles),
        }
        return Setup(Scenario.model_validate(plain), tuple(assumed))
    except ScenarioError as error:
        raise NotSimulatable(str(error)) from error


def _cost(row: Row, overhead: str | None, assumed: list[str]) -> dict[str, str]:
    """Return the overhead asked for, or for clients of vLLM's server what was fitted to it."""
    if overhead:
        return {"overhead": overhead}
    if row["framework"].lower() != "vllm" or not row.get("concurrency"):
        return {}
    assumed.append(f"time between client and engine as fitted to other runs ({FITTED.name})")
    return {"overhead": str(FITTED)}


def _engine(row: Row, assumed: list[str]) -> str:
    """Return the preset of the row's engine: its version, or the nearest that there is."""
    framework = row["framework"].lower()
    if _is_trtllm(row):
        return TRTLLM_POLICY
    version = version_of(row)
    presets = [name for name in PRESETS if name.startswith(f"{framework}-")]
    if not presets:
        raise NotSimulatable(f"no preset for the engine {row['framework']}")
    if not version:
        if framework == "vllm" and "2026" not in row["framework_version"]:
            raise NotSimulatable(
                f"{row['framework']} {row['framework_version']}: an engine before the presets"
            )
        wanted = (0, 15)
    else:
        wanted = version
    best = min(presets, key=lambda name: _distance(name, wanted))
    if not version or _distance(best, wanted) > (0,):
        assumed.append(f"{row['framework']} {row['framework_version']} run as {best}")
    return best


def _distance(preset: str, wanted: tuple[int, ...]) -> tuple[int, ...]:
    parts = tuple(int(part) for part in preset.split("-")[1].split("."))
    return tuple(abs(a - b) for a, b in zip(parts, wanted, strict=False) if a != b) or (0,)


def _pool(row: Row, assumed: list[str]) -> dict[str, Any]:
    degrees = {name: round(float(row.get(name) or 1)) for name in ("tp", "pp", "dp", "ep")}
    kv = row.get("kv_precision") or ""
    if "," in kv:
        raise NotSimulatable(f"KV cache of mixed types ({kv})")
    if not kv:
        kv = "fp8" if _is_trtllm(row) and _eight_bit_cache(row) else ""
        assumed.append(
            "KV cache at 8 bit, as the checkpoint or recipe asks for" if kv else "KV cache at 16 bit"
        )
    if "gb200" in row["gpu"].lower():
        assumed.append("GB200 run as B200")
    return {
        "gpu": gpu_name(row["gpu"]),
        **degrees,
        "weights_dtype": dtype(row["weights_precision"], row["model"]),
        "kv_dtype": dtype(kv),
    }


def _is_trtllm(row: Row) -> bool:
    return row["framework"].lower() == "tensorrt-llm"


def _eight_bit_cache(row: Row) -> bool:
    """True for NVIDIA's FP8 and NVFP4 checkpoints, and for gpt-oss by its recipe except on Hopper."""
    hopper = "h100" in row["gpu"].lower() or "h200" in row["gpu"].lower()
    return row["weights_precision"] in ("FP8", "NVFP4") or (
        row["weights_precision"] == "MXFP4" and not hopper
    )


def _as_benched(row: Row, pool: dict[str, Any], assumed: list[str]) -> dict[str, Any]:
    """Return the engine settings that trtllm-bench chose, and set the pool's share of memory."""
    stated = re.search(r"free_gpu_mem_fraction (0\.\d+)", row.get("scheduler_settings", ""))
    share = float(stated[1]) if stated else TRTLLM_CACHE_SHARE
    lengths = (float(row["isl"]), float(row["osl"]))
    made = bench(load_model(model_preset(row["model"])), load_gpu(pool["gpu"]), pool, lengths, share)
    pool["gpu_memory_utilization"] = made.memory_share
    pool["max_model_len"] = made.max_model_len
    if pool["dp"] > 1 and pool["ep"] <= TRTLLM_GATHERED_RANKS:
        pool["all2all"] = "allgather"
        assumed.append("tokens gathered from all ranks, as TensorRT-LLM does up to as many ranks as picks")
    assumed.append(
        f"TensorRT-LLM run as {TRTLLM_POLICY} with the limits and graphs of its bench, no eviction"
    )
    return {**made.options, "overhead": made.overhead}


def _workload(row: Row, assumed: list[str]) -> dict[str, Any]:
    spread = row.get("length_dist", "")
    if not spread or "not stated" in spread:
        assumed.append("lengths fixed")
    prompt = _length(row, "isl", spread)
    concurrency = row.get("concurrency")
    if concurrency:
        clients = round(float(concurrency))
        requests = round(float(row.get("num_requests") or 0)) or REQUESTS_PER_CLIENT * clients
        if not row.get("num_requests"):
            assumed.append(f"{REQUESTS_PER_CLIENT} requests per client")
        arrivals, loop = _AT_ONCE, {"closed_loop": {"concurrency": clients}}
    elif all_at_start(row):
        requests = round(float(row.get("num_requests") or OFFLINE_REQUESTS))
        if not row.get("num_requests"):
            assumed.append(f"{OFFLINE_REQUESTS:,} requests")
        arrivals, loop = _AT_ONCE, {"closed_loop": {"concurrency": requests}}
    elif row.get("rate_rps") and row.get("num_requests"):
        requests = round(float(row["num_requests"]))
        arrivals: dict[str, Any] = {"kind": "poisson", "rate_per_s": float(row["rate_rps"])}
        loop = {}
    else:
        raise NotSimulatable("neither a closed loop nor a rate with a number of requests")
    synthetic = {
        "requests": requests,
        "arrivals": arrivals,
        "prompt_tokens": prompt,
        "output_tokens": _length(row, "osl", spread),
    }
    return {"synthetic": synthetic, **loop}


def _length(row: Row, name: str, spread: str) -> dict[str, Any]:
    try:
        nominal = float(row[name])
    except ValueError:
        raise NotSimulatable(f"{name} is {row[name]!r}, not a number") from None
    if _SPREAD_8_TO_10.search(spread):
        return {"kind": "uniform", "min": 0.8 * nominal, "max": nominal}
    if _SPREAD_15_PERCENT.search(spread):
        return {"kind": "uniform", "min": 0.85 * nominal, "max": 1.15 * nominal}
    return {"kind": "constant", "value": nominal}
