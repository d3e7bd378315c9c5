"""The questions that `simserve init` puts into a scenario, as variants of it: GPUs, a split, chunk sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simserve.cli.init_text import Wanted, pool
from simserve.errors import UserError

if TYPE_CHECKING:
    from simserve.scenario import Deployment, LoadedScenario

Lines = list[str]
"""Variants as YAML, below `compare:`."""
Runs = Callable[[dict[str, Any]], bool]
"""Whether the scenario with some changed values could be run."""
CHUNK = ("max_num_batched_tokens", "chunked_prefill_size")
"""The engines' options for the tokens of a step: vLLM's, SGLang's."""


def questions_of(wanted: Wanted, it: LoadedScenario, base: Deployment) -> dict[str, Lines]:
    """Return the questions to ask next, each with variants that can be run."""
    from simserve.scenario.build import Parts, build
    from simserve.scenario.load import changed

    parts = Parts()

    def runs(changes: dict[str, Any]) -> bool:
        try:
            build(changed(it, changes), base.trace, parts)
        except UserError:
            return False
        return True

    found = {
        "Which of my GPUs?": _other_gpu(wanted, base, runs),
        "Prefill and decode apart, or not?": _split(wanted, runs),
        "Which chunk size?": _chunks(base),
    }
    return {question: lines for question, lines in found.items() if lines}


def _other_gpu(wanted: Wanted, base: Deployment, runs: Runs) -> Lines:
    """Return the next faster GPU with measured kernels that the model fits on, or the next slower one."""
    from simserve.hardware import load_gpu
    from simserve.latency.profiles import ProfileStore

    here = base.pools[0].gpu
    others = [load_gpu(name) for name in ProfileStore().gpus() if name != here.name]
    more = {gpu.name: gpu.hbm_bytes_per_s - here.hbm_bytes_per_s for gpu in others}
    for name in sorted(more, key=lambda name: (more[name] < 0, abs(more[name]))):
        if runs({"pools.0.gpu": name}):
            return [f"on_{name}: {{pools: [{pool(name, wanted.replicas, wanted.tp)}]}}"]
    return []


def _split(wanted: Wanted, runs: Runs) -> Lines:
    """Return a split over the same GPUs; where the model needs all of them, one over twice as many."""
    half, tp = wanted.replicas // 2, wanted.tp
    same = [(half, wanted.replicas - half, tp)] if half else [(1, 1, tp // 2)] if tp > 1 else []
    for prefill, decode, degree in [*same, (wanted.replicas, wanted.replicas, tp)]:
        roles = {"prefill": prefill, "decode": decode}
        plain = {"gpu": wanted.gpu, "tp": degree}
        if runs({"pools": [{"name": r, "role": r, "replicas": n, **plain} for r, n in roles.items()]}):
            lines = [f"    - {pool(wanted.gpu, n, degree, role)}" for role, n in roles.items()]
            gpus = (prefill + decode) * degree
            if gpus == wanted.gpus:
                return ["split:", "  pools:", *lines]
            whole = pool(wanted.gpu, wanted.replicas * 2, tp)
            return [f"split_{gpus}_gpus:", "  pools:", *lines, f"whole_{gpus}_gpus: {{pools: [{whole}]}}"]
    return []


def _chunks(base: Deployment) -> Lines:
    """Return a quarter and twice the tokens that a step holds by default."""
    options = base.pools[0].engine.options
    name = next((name for name in CHUNK if options.get(name)), None)
    sizes = (options[name] // 4, options[name] * 2) if name else ()
    return [f"chunks_of_{tokens}: {{engine: {{{name}: {tokens}}}}}" for tokens in sizes]
