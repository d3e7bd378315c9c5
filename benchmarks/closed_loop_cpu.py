"""From profile to prediction on the machine at hand: profile this CPU, serve for real, simulate, compare.

    python -m benchmarks.closed_loop_cpu                      some five minutes, two small models, three
    loads each python -m benchmarks.closed_loop_cpu --models tiny --page docs/profiling.md

The engine is `benchmarks.cpu_engine` (see there). Nothing is fitted to the served runs: kernels come from the
profile made just before, the loop's own cost from a run with the model left out.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.cpu_engine.model import Model
from benchmarks.cpu_engine.scheduler import Scheduler, Sequence
from benchmarks.cpu_engine.server import Server, Step
from simserve.core import Chunk, Request, Result
from simserve.model import load_model
from simserve.profiler.device import open_device
from simserve.profiler.job import Job
from simserve.scenario import Scenario, build

BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, BUDGET = 600, 64, 16, 512
LOADS = (0.35, 0.7, 0.95)
"""Arrival rates as shares of what the simulator says that the machine can serve."""
OVERHEAD = """\
base: ideal
gap_us: {gap_us:.1f}
provenance: {{gap_us: "the engine's loop with the model left out, {sequences} sequences"}}
fit: {{}}
"""


def draw_requests(count: int, rate_per_s: float, seed: int) -> list[Sequence]:
    """Return Poisson arrivals with log-uniform lengths: prompts of 32-384 tokens, answers of 8-48."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, count))
    prompts = np.exp(rng.uniform(np.log(32), np.log(384), count)).astype(int)
    outputs = np.exp(rng.uniform(np.log(8), np.log(48), count)).astype(int)
    return [
        Sequence(i, float(arrivals[i]), rng.integers(0, 8192, prompts[i]).tolist(), int(outputs[i]))
        for i in range(count)
    ]


def new_server(model: Model) -> Server:
    return Server(model, Scheduler(BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, BUDGET))


def loop_us(model: Model) -> float:
    """Return microseconds of a decode step of 8 sequences beside the model."""
    server = new_server(model)
    server.compute = lambda inputs: [0] * len(inputs.sampled)
    server.serve([Sequence(i, 0.0, [1] * 64, 200) for i in range(8)])
    return 1e6 * float(np.median([step.whole_s for step in server.steps if not step.chunks]))


def scenario(model: str, folder: Path, trace: Path, overhead: Path) -> Scenario:
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
            "profiles": [str(folder)],
        }
    )  # fmt: skip


def write_trace(requests: list[Sequence], path: Path) -> None:
    lines = [f"{r.arrival_s:.6f},{len(r.prompt)},{r.output_tokens}" for r in requests]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n")


def step_errors(steps: list[Step], latency) -> np.ndarray:
    """Return predicted / measured - 1 of every step, from what it held."""
    errors = []
    for step in steps:
        chunks = [Chunk(Request(0, 0, new, 1), new, cached, last) for new, cached, last in step.chunks]
        predicted_ns = latency.quietly_step_ns(step.decodes, step.decode_context, chunks)
        errors.append(predicted_ns / (step.whole_s * 1e9) - 1)
    return np.array(errors)


def metrics(
    arrival: np.ndarray, first: np.ndarray, last: np.ndarray, outputs: np.ndarray
) -> dict[str, np.ndarray]:
    """Return milliseconds per request from seconds."""
    return {
        "TTFT": 1000 * (first - arrival),
        "TPOT": 1000 * (last - first) / (outputs - 1),
        "E2E": 1000 * (last - arrival),
    }


def compare(model_name: str, folder: Path, requests_per_load: int, scratch: Path) -> list[str]:
    model = Model(load_model(model_name), BLOCKS, BLOCK_SIZE)
    new_server(model).serve(draw_requests(4, 100.0, 9))  # warm up
    gap_us = loop_us(model)
    overhead, trace = scratch / "overhead.yaml", scratch / "trace.csv"
    overhead.write_text(OVERHEAD.format(gap_us=gap_us, sequences=8))
    burst = draw_requests(40, 1e6, 0)
    write_trace(burst, trace)
    result = build(scenario(model_name, folder, trace, overhead)).simulate(None)
    capacity = len(burst) / (float(np.max(result.last_token_ns)) / 1e9)
    rows = []
    for seed, load in enumerate(LOADS, 1):

        def requests(seed: int = seed, load: float = load) -> list[Sequence]:
            return draw_requests(requests_per_load, load * capacity, seed)

        write_trace(requests(), trace)
        measured, server = serve(model, requests())
        again, _ = serve(model, requests())
        deployment = build(scenario(model_name, folder, trace, overhead))
        predicted = simulated(deployment.simulate(None))
        errors = step_errors(server.steps, deployment.pools[0].latency)
        with_prompts = np.array([bool(step.chunks) for step in server.steps])
        cells = [model_name, f"{load:.0%}, {load * capacity:.2f}/s", *_errors(measured, predicted)]
        cells.append(f"{np.mean(again['E2E']) / np.mean(measured['E2E']) - 1:+.0%}")
        cells += [_spread(part) for part in (errors[~with_prompts], errors[with_prompts])]
        rows.append("| " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    return rows


def serve(model: Model, requests: list[Sequence]) -> tuple[dict[str, np.ndarray], Server]:
    """Serve for real; return milliseconds per request, and the server with its steps."""
    server = new_server(model)
    served = sorted(server.serve(requests), key=lambda request: request.number)
    columns = [[getattr(r, name) for r in served] for name in ("arrival_s", "first_s", "last_s")]
    outputs = np.array([len(request.made) for request in served])
    return metrics(*(np.array(column) for column in columns), outputs), server


def simulated(result: Result) -> dict[str, np.ndarray]:
    """Return milliseconds per request of a simulation."""
    columns = (result.arrival_ns, result.first_token_ns, result.last_token_ns)
    return metrics(*(np.asarray(column) / 1e9 for column in columns), np.asarray(result.output_tokens))


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


HEAD = (
    "| model | load | TTFT mean | TTFT p90 | TPOT mean | TPOT p90 | E2E mean | E2E p90 "
    "| E2E again | decode steps | steps with prompts |\n|---|---|---|---|---|---|---|---|---|---|---|"
)
MARKS = ("<!-- closed loop -->", "<!-- end of closed loop -->")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="tiny,tiny-mla-moe")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for the profile")
    parser.add_argument("--requests", type=int, default=30, help="per load")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profiles", type=Path, help="use this profile instead of making one")
    parser.add_argument("--page", type=Path, help="replace the table of this page")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    models = options.models.split(",")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = options.profiles or scratch / "profiles"
        if not options.profiles:
            job = Job.make("cpu", models, [], [1], "fp32", [], "cpu", options.threads)
            outcome = job.run(folder, options.budget)
            print(f"profile: {outcome.timed} kernels timed, {outcome.left} left")
        print(HEAD)
        rows = [row for model in models for row in compare(model, folder, options.requests, scratch)]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    title, threads = open_device("cpu").title, options.threads
    note = f"{title}, {threads} thread, torch {torch.__version__}; "
    note += f"load average at the end {load} on {os.cpu_count()} cores."
    print(note)
    if options.page:
        text = options.page.read_text()
        table = "\n".join([MARKS[0], note, "", HEAD, *rows, MARKS[1]])
        pattern = re.compile(f"{re.escape(MARKS[0])}.*?{re.escape(MARKS[1])}", re.DOTALL)
        options.page.write_text(pattern.sub(lambda _: table, text))


if __name__ == "__main__":
    main()
