"""From profile to prediction on the machine at hand: profile this CPU, serve for real, simulate, compare.

    python -m benchmarks.closed_loop_cpu                      some ten minutes, three loads each
    python -m benchmarks.closed_loop_cpu --models tiny:own --page docs/profiling.md

A Llama-like model is served by transformers' continuous batching if that is installed, and, like the MLA/MoE
model, by the engine in `benchmarks.cpu_engine` (`tiny:transformers`, `tiny:own`). Nothing is fitted to the
served runs: kernels come from the profile made just before, the loop's own cost from a run without the model.
"""

from __future__ import annotations

import argparse
import importlib.util
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
from simserve.profiler.ops import OPS
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


class OwnEngine:
    """The engine of `benchmarks.cpu_engine`, with the steps of the last run."""

    backends = ("torch",)

    def __init__(self, name: str) -> None:
        self.model = Model(load_model(name), BLOCKS, BLOCK_SIZE)
        self.steps: list[Step] = []

    def serve(self, requests: list[Sequence]) -> list[Sequence]:
        server = Server(self.model, Scheduler(BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, BUDGET))
        served = server.serve(requests)
        self.steps = server.steps
        return served

    def loop_us(self) -> float:
        """Return microseconds of a decode step of 8 sequences beside the model."""
        server = Server(self.model, Scheduler(BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, BUDGET))
        server.compute = lambda inputs: [0] * len(inputs.sampled)
        server.serve([Sequence(i, 0.0, [1] * 64, 200) for i in range(8)])
        return 1e6 * float(np.median([step.whole_s for step in server.steps if not step.chunks]))


class Transformers:
    """transformers' continuous batching; it does not say what its steps held."""

    backends = ("transformers",)
    steps: tuple[Step, ...] = ()

    def __init__(self, name: str) -> None:
        from benchmarks.cpu_engine.transformers_engine import TransformersEngine

        self._engine = TransformersEngine(load_model(name), BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, BUDGET)

    def serve(self, requests: list[Sequence]) -> list[Sequence]:
        return self._engine.serve(requests)

    def loop_us(self) -> float:
        """Return microseconds of a decode step of 8 sequences beside the model."""
        return self._engine.loop_us(8, 100)


ENGINES = {"own": OwnEngine, "transformers": Transformers}
ATTENTION = ("attn_decode", "attn_prefill", "attn_mixed")


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


def compare(
    model_name: str, engine_name: str, folder: Path, requests_per_load: int, scratch: Path
) -> list[str]:
    engine = ENGINES[engine_name](model_name)
    engine.serve(draw_requests(4, 100.0, 9))  # warm up
    overhead, trace = scratch / "overhead.yaml", scratch / "trace.csv"
    overhead.write_text(OVERHEAD.format(gap_us=engine.loop_us(), sequences=8))
    burst = draw_requests(40, 1e6, 0)
    write_trace(burst, trace)
    result = build(scenario(model_name, folder, trace, overhead)).simulate(None)
    capacity = len(burst) / (float(np.max(result.last_token_ns)) / 1e9)
    rows = []
    for seed, load in enumerate(LOADS, 1):

        def requests(seed: int = seed, load: float = load) -> list[Sequence]:
            return draw_requests(requests_per_load, load * capacity, seed)

        write_trace(requests(), trace)
        measured = served(engine, requests())
        steps = list(engine.steps)
        again = served(engine, requests())
        deployment = build(scenario(model_name, folder, trace, overhead))
        predicted = simulated(deployment.simulate(None))
        errors = step_errors(steps, deployment.pools[0].latency)
        with_prompts = np.array([bool(step.chunks) for step in steps], bool)
        name = f"{model_name}, {engine_name}"
        cells = [name, f"{load:.0%}, {load * capacity:.2f}/s", *_errors(measured, predicted)]
        cells.append(f"{np.mean(again['E2E']) / np.mean(measured['E2E']) - 1:+.0%}")
        cells += [_spread(part) for part in (errors[~with_prompts], errors[with_prompts])]
        rows.append("| " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    return rows


def served(engine: OwnEngine | Transformers, requests: list[Sequence]) -> dict[str, np.ndarray]:
    """Serve for real; return milliseconds per request."""
    done = sorted(engine.serve(requests), key=lambda request: request.number)
    columns = [[getattr(r, name) for r in done] for name in ("arrival_s", "first_s", "last_s")]
    outputs = np.array([len(request.made) for request in done])
    arrival, first, last = (np.array(column) for column in columns)
    return metrics(arrival, first, last, outputs)


def simulated(result: Result) -> dict[str, np.ndarray]:
    """Return milliseconds per request of a simulation."""
    columns = (result.arrival_ns, result.first_token_ns, result.last_token_ns)
    arrival, first, last = (np.asarray(column) / 1e9 for column in columns)
    return metrics(arrival, first, last, np.asarray(result.output_tokens))


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
    "| model, engine | load | TTFT mean | TTFT p90 | TPOT mean | TPOT p90 | E2E mean | E2E p90 "
    "| E2E again | decode steps | steps with prompts |\n|---|---|---|---|---|---|---|---|---|---|---|"
)
MARKS = ("<!-- closed loop -->", "<!-- end of closed loop -->")


def _default_models() -> str:
    has = importlib.util.find_spec("transformers") is not None
    return ("tiny:transformers," if has else "") + "tiny:own,tiny-mla-moe:own"


def profiled(engine: str, models: list[str], options: argparse.Namespace, folder: Path) -> Path:
    """Profile this CPU: attention as the engine computes it, the rest by torch."""
    others = [op for op in OPS if op not in ATTENTION]
    attention = ENGINES[engine].backends
    parts = (
        (list(ATTENTION[:2]), attention, 0.25),
        (list(ATTENTION[2:]), attention, 0.2),
        (others, ("torch",), 0.55),
    )  # fmt: skip
    for ops, backends, share in parts:
        job = Job.make("cpu", models, ops, [1], "fp32", [], "cpu", options.threads, backends=backends)
        outcome = job.run(folder, share * options.budget, resume=True)
        print(f"profile for {engine}: {outcome.timed} kernels timed, {outcome.left} left", flush=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=_default_models(), help="model:engine, with commas")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for each engine's profile")
    parser.add_argument("--requests", type=int, default=30, help="per load")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profiles", type=Path, help="use this profile instead of making one")
    parser.add_argument("--page", type=Path, help="replace the table of this page")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pairs = [pair.split(":") for pair in options.models.split(",")]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        rows = []
        print(HEAD)
        for engine in dict.fromkeys(engine for _, engine in pairs):
            models = [model for model, its_engine in pairs if its_engine == engine]
            folder = options.profiles or profiled(engine, models, options, scratch / engine)
            for model in models:
                rows += compare(model, engine, folder, options.requests, scratch)
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
