"""The same requests served and simulated, and how far apart the two are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.cpu_engine.engines import (
    BLOCK_SIZE,
    BUDGET,
    ENGINES,
    MAX_SEQUENCES,
    Engine,
    draw_requests,
)
from benchmarks.cpu_engine.scheduler import Sequence
from benchmarks.cpu_engine.server import Step
from simserve.core import Chunk, Request, Result
from simserve.deploy.build import build
from simserve.latency import StepLatency
from simserve.scenario import Scenario

LOADS = (0.35, 0.7, 0.95)
"""Arrival rates as shares of what the simulator says that the machine can serve."""
OVERHEAD = """\
base: ideal
gap_us: {gap_us:.1f}
provenance: {{gap_us: "the engine's loop with the model left out, {sequences} sequences"}}
fit: {{}}
"""


def compare(model: str, engine_name: str, profile: Path, count: int, scratch: Path) -> Iterator[list[str]]:
    """Yield the cells of a row for each load; see `docs/profiling.md` for what they hold."""
    engine = ENGINES[engine_name](model)
    engine.serve(draw_requests(4, 100.0, 9))  # warm up
    overhead, trace = scratch / "overhead.yaml", scratch / "trace.csv"
    overhead.write_text(OVERHEAD.format(gap_us=engine.loop_us(), sequences=8))
    burst = draw_requests(40, 1e6, 0)
    write_trace(burst, trace)
    result = build(scenario(model, profile, trace, overhead)).simulate(None)
    capacity = len(burst) / (float(np.max(result.last_token_ns)) / 1e9)
    for seed, load in enumerate(LOADS, 1):
        rate_per_s = load * capacity
        write_trace(draw_requests(count, rate_per_s, seed), trace)
        measured = served(engine, draw_requests(count, rate_per_s, seed))
        steps = list(engine.steps)
        again = served(engine, draw_requests(count, rate_per_s, seed))
        deployment = build(scenario(model, profile, trace, overhead))
        predicted = simulated(deployment.simulate(None))
        errors = step_errors(steps, deployment.pools[0].latency)
        with_prompts = np.array([bool(step.chunks) for step in steps], bool)
        yield [
            f"{model}, {engine_name}",
            f"{load:.0%}, {rate_per_s:.2f}/s",
            *_errors(measured, predicted),
            f"{np.mean(again['E2E']) / np.mean(measured['E2E']) - 1:+.0%}",
            *(_spread(part) for part in (errors[~with_prompts], errors[with_prompts])),
        ]


def scenario(model: str, profile: Path, trace: Path, overhead: Path) -> Scenario:
    """Return what describes the engines of this folder to the simulator."""
    return Scenario.model_validate(
        {
            "name": f"{model} on this CPU",
            "model": model,
            "engine": {
                "preset": "vllm-0.33", "max_num_seqs": MAX_SEQUENCES, "max_num_batched_tokens": BUDGET,
                "enable_prefix_caching": False, "async_scheduling": False, "block_size": BLOCK_SIZE,
                "overhead": str(overhead),
            },
            "workload": {"trace": str(trace), "max_tokens": "exact"},
            "pools": [{"gpu": "cpu", "weights_dtype": "fp32", "kv_dtype": "fp32", "max_model_len": 2048}],
            "profiles": [str(profile)],
        }
    )  # fmt: skip


def write_trace(requests: list[Sequence], path: Path) -> None:
    """Write arrivals and lengths as a trace."""
    lines = [f"{r.arrival_s:.6f},{len(r.prompt)},{r.output_tokens}" for r in requests]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n")


def step_errors(steps: list[Step], latency: StepLatency) -> np.ndarray:
    """Return predicted / measured - 1 of every step, from what it held."""
    errors = []
    for step in steps:
        chunks = [Chunk(Request(0, 0, new, 1), new, cached, last) for new, cached, last in step.chunks]
        predicted_ns = latency.step_ns(step.decodes, step.decode_context, chunks)
        errors.append(predicted_ns / (step.whole_s * 1e9) - 1)
    return np.array(errors)


def served(engine: Engine, requests: list[Sequence]) -> dict[str, np.ndarray]:
    """Serve for real; return milliseconds per request."""
    done = sorted(engine.serve(requests), key=lambda request: request.number)
    columns = [[getattr(r, name) for r in done] for name in ("arrival_s", "first_s", "last_s")]
    outputs = np.array([len(request.made) for request in done])
    arrival, first, last = (np.array(column) for column in columns)
    return _metrics(arrival, first, last, outputs)


def simulated(result: Result) -> dict[str, np.ndarray]:
    """Return milliseconds per request of a simulation."""
    columns = (result.arrival_ns, result.first_token_ns, result.last_token_ns)
    arrival, first, last = (np.asarray(column) / 1e9 for column in columns)
    return _metrics(arrival, first, last, np.asarray(result.output_tokens))


def _metrics(
    arrival_s: np.ndarray, first_s: np.ndarray, last_s: np.ndarray, outputs: np.ndarray
) -> dict[str, np.ndarray]:
    return {
        "TTFT": 1000 * (first_s - arrival_s),
        "TPOT": 1000 * (last_s - first_s) / (outputs - 1),
        "E2E": 1000 * (last_s - arrival_s),
    }


def _errors(measured: dict[str, np.ndarray], predicted: dict[str, np.ndarray]) -> list[str]:
    cells = []
    for name in measured:
        for statistic in (np.mean, lambda values: np.quantile(values, 0.9)):
            ours, real = float(statistic(predicted[name])), float(statistic(measured[name]))
            cells.append(f"{real:.0f} / {ours:.0f} ({ours / real - 1:+.0%})")
    return cells


def _spread(errors: np.ndarray) -> str:
    if not len(errors):
        return "none"
    return f"{np.median(errors):+.0%}, {np.quantile(np.abs(errors), 0.9):.0%} ({len(errors)})"
