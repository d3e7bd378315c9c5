"""From profile to prediction on the machine at hand: profile this CPU, serve for real, simulate, compare.

    python -m benchmarks.closed_loop_cpu                      some fifteen minutes, three loads each
    python -m benchmarks.closed_loop_cpu --models tiny:own --page docs/profiling.md

A Llama-like model is served by transformers' continuous batching if that is installed, and, like the MLA/MoE
model, by the engine in `benchmarks.cpu_engine`: by the wall's clock (`tiny:own`) and by its thread's CPU time
(`tiny:own-cpu-time`), in which other programs do not count. Nothing is fitted to the served runs: kernels
come from the profile made just before, the loop's own cost from a run without the model.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import tempfile
from pathlib import Path

import torch

from benchmarks.cpu_engine.comparison import compare
from benchmarks.cpu_engine.engines import BACKENDS
from simserve.model import load_model
from simserve.model.layers import GqaAttention
from simserve.profiler.device import open_device
from simserve.profiler.job import Job, Types
from simserve.profiler.ops import OPS

ATTENTION = ("attn_decode", "attn_prefill", "attn_mixed")
HEAD = (
    "| model, engine | load | TTFT mean | TTFT p90 | TPOT mean | TPOT p90 | E2E mean | E2E p90 "
    "| E2E again | decode steps | steps with prompts |\n|---|---|---|---|---|---|---|---|---|---|---|"
)
MARKS = ("<!-- closed loop -->", "<!-- end of closed loop -->")


def profiled(backends: tuple[str, ...], models: list[str], budget_s: float, threads: int, out: Path) -> Path:
    """Profile this CPU: attention by `backends`, as the engine computes it, the rest by torch."""
    others = [op for op in OPS if op not in ATTENTION]
    parts = [(others, ("torch",), 0.55)]
    if any(_has_heads(model) for model in models):
        parts = [(list(ATTENTION[:2]), backends, 0.25), (list(ATTENTION[2:]), backends, 0.2), *parts]
    for ops, by, share in parts:
        job = Job.make("cpu", "cpu", models, ops, [1], Types("fp32"), threads=threads, backends=by)
        outcome = job.run(out, share * budget_s, resume=True)
        print(f"profile by {', '.join(by)}: {outcome.timed} kernels timed, {outcome.left} left", flush=True)
    return out


def _has_heads(model: str) -> bool:
    """Return True if a model has attention other than MLA, which is measured with all the rest."""
    attentions = (attention for group in load_model(model).layers for attention in group.attentions)
    return any(isinstance(attention, GqaAttention) for attention in attentions)


def table(options: argparse.Namespace, scratch: Path) -> list[str]:
    """Profile, serve and simulate; return the table's rows, which are printed as they come."""
    pairs = [pair.split(":") for pair in options.models.split(",")]
    rows = []
    print(HEAD)
    for backends in dict.fromkeys(BACKENDS[engine] for _, engine in pairs):
        here = [pair for pair in pairs if BACKENDS[pair[1]] == backends]
        models = list(dict.fromkeys(model for model, _ in here))
        made = scratch / "-".join(backends)
        profile = options.profiles or profiled(backends, models, options.budget, options.threads, made)
        for model, engine in here:
            for cells in compare(model, engine, profile, options.requests, scratch):
                rows.append("| " + " | ".join(cells) + " |")
                print(rows[-1], flush=True)
    return rows


def replace_table(page: Path, note: str, rows: list[str]) -> None:
    """Put the table between the page's marks."""
    made = "\n".join([MARKS[0], note, "", HEAD, *rows, MARKS[1]])
    pattern = re.compile(f"{re.escape(MARKS[0])}.*?{re.escape(MARKS[1])}", re.DOTALL)
    page.write_text(pattern.sub(lambda _: made, page.read_text()))


def _default_models() -> str:
    has = importlib.util.find_spec("transformers") is not None
    own = [f"{model}:{engine}" for model in ("tiny", "tiny-mla-moe") for engine in ("own-cpu-time", "own")]
    return ",".join([*(["tiny:transformers"] if has else []), *own])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=_default_models(), help="model:engine, with commas")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for each engine's profile")
    parser.add_argument("--requests", type=int, default=30, help="per load")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profiles", type=Path, help="use this profile instead of making one")
    parser.add_argument("--page", type=Path, help="replace the table of this page")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        rows = table(options, Path(name))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    note = f"{open_device('cpu').title}, {options.threads} thread, torch {torch.__version__}; "
    note += f"load average at the end {load} on {os.cpu_count()} cores."
    print(note)
    if options.page:
        replace_table(options.page, note, rows)


if __name__ == "__main__":
    main()
