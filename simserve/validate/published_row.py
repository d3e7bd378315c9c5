"""From a row of published results to a scenario: its deployment and its load, or why it cannot be run.

Only what a row says is used; what it leaves open is what a scenario of the engine gets by default, and each
guess is named. Versions without a preset are run as the nearest one that has, in words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from simserve.errors import ScenarioError, UserError
from simserve.policy.presets import ENGINES
from simserve.scenario import Scenario
from simserve.validate.names import dtype, gpu_name, model_preset

Row = Mapping[str, str]

REQUESTS_PER_CLIENT = 10
"""Requests of a closed loop per client where a row does not say (InferenceX does so)."""
_SPREAD_8_TO_10 = re.compile(r"0\.8-1\.0")
_SPREAD_15_PERCENT = re.compile(r"\+-15 ?%")


class NotSimulatable(UserError):
    """A row asks for something that cannot be run here; the message says what."""


class Setup(NamedTuple):
    """A row as a scenario."""

    scenario: Scenario
    assumed: tuple[str, ...]


def setup_of(row: Row, overhead: str | None = None) -> Setup:
    """Return the row's scenario; raises `NotSimulatable` with the reason."""
    if row.get("simulatable") != "yes":
        raise NotSimulatable(f"marked not simulatable: {row.get('missing') or 'no reason given'}")
    if row.get("mode") != "agg":
        raise NotSimulatable(f"mode {row.get('mode')!r}: only whole engines (agg) are run")
    if row.get("spec_decode") not in ("", "none", None):
        raise NotSimulatable(f"speculative decoding ({row['spec_decode']})")
    assumed: list[str] = []
    try:
        plain = {
            "name": row["row_id"],
            "model": model_preset(row["model"]),
            "engine": {"preset": _engine(row, assumed)} | ({"overhead": overhead} if overhead else {}),
            "pools": [_pool(row, assumed)],
            "workload": _workload(row, assumed),
        }
        return Setup(Scenario.model_validate(plain), tuple(assumed))
    except ScenarioError as error:
        raise NotSimulatable(str(error)) from error


def _engine(row: Row, assumed: list[str]) -> str:
    """Return the preset of the row's engine: its version, or the nearest that there is."""
    framework = row["framework"].lower()
    version = re.search(r"\d+\.\d+(\.\d+)?", row["framework_version"])
    presets = [name for name in ENGINES if name.startswith(f"{framework}-")]
    if not presets:
        raise NotSimulatable(f"no preset for the engine {row['framework']}")
    if version is None:
        if framework == "vllm" and "2026" not in row["framework_version"]:
            raise NotSimulatable(
                f"{row['framework']} {row['framework_version']}: an engine before the presets"
            )
        wanted = (0, 15)
    else:
        wanted = tuple(int(part) for part in version[0].split("."))
    best = min(presets, key=lambda name: _distance(name, wanted))
    if version is None or _distance(best, wanted) > (0,):
        assumed.append(f"{row['framework']} {row['framework_version']} run as {best}")
    return best


def _distance(preset: str, wanted: tuple[int, ...]) -> tuple[int, ...]:
    parts = tuple(int(part) for part in preset.split("-")[1].split("."))
    return tuple(abs(a - b) for a, b in zip(parts, wanted, strict=False) if a != b) or (0,)


def _pool(row: Row, assumed: list[str]) -> dict[str, Any]:
    degrees = {name: round(float(row.get(name) or 1)) for name in ("tp", "pp", "dp", "ep")}
    if degrees["dp"] > 1:
        raise NotSimulatable(f"attention data parallelism of {degrees['dp']} is not simulated yet")
    kv = row.get("kv_precision") or ""
    if "," in kv:
        raise NotSimulatable(f"KV cache of mixed types ({kv})")
    if not kv:
        assumed.append("KV cache at 16 bit")
    return {
        "gpu": gpu_name(row["gpu"]),
        **degrees,
        "weights_dtype": dtype(row["weights_precision"]),
        "kv_dtype": dtype(kv),
    }


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
        arrivals: dict[str, Any] = {"kind": "constant", "rate_per_s": 1.0}
        loop = {"closed_loop": {"concurrency": clients}}
    elif row.get("rate_rps") and row.get("num_requests"):
        requests = round(float(row["num_requests"]))
        arrivals = {"kind": "poisson", "rate_per_s": float(row["rate_rps"])}
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
