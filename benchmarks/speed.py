"""What a simulated request costs, in raw SimPy timeouts per request.

    python -m benchmarks.speed                    all cases but the large one
    python -m benchmarks.speed --case million     one million requests on 32 replicas

Policy vllm (0.33), Llama-3.1-8B on h100_sxm. Only the simulation is timed: traces are read and latency tables
compiled before. The Azure traces are looked for in ../shared/traces, else where `simserve trace fetch` puts
them; a case whose trace is absent is skipped and says so.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.cost import measure
from simserve.core import Result, Trace, TraceOrigin
from simserve.deploy.build import build
from simserve.router.base import ROUTERS
from simserve.scenario import Scenario
from simserve.sim import Clients, simulate
from simserve.workload import load_trace, scale_rate_by_compression, tile

_ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = (_ROOT.parent / "shared" / "traces", _ROOT / "traces")


def find_trace(stem: str) -> Path | None:
    """Return the first file of that stem among the folders where public traces may lie."""
    return next((path for folder in _FOLDERS for path in sorted(folder.glob(f"{stem}*"))), None)


def run_case(trace: Trace, replicas: int, concurrency: int | None = None, **options) -> tuple[Result, str]:
    """Simulate `trace` on equal replicas; return the result and a line of figures."""
    scenario = Scenario.model_validate(
        {
            "name": "benchmark",
            "model": "llama-3.1-8b",
            "engine": {"preset": "vllm-0.33", **options},
            "workload": {"synthetic": _ANY_WORKLOAD},
            "pools": [{"name": "h100", "gpu": "h100_sxm", "replicas": replicas}],
        }
    )
    deployment = build(scenario)
    replicas_built = replace(deployment, trace=trace).replicas()
    router_type = ROUTERS.get("least_outstanding_requests")
    router = router_type(router_type.Params(), seed=1)
    result, cost = measure(lambda: simulate(trace, replicas_built, router, clients=Clients(concurrency)))
    requests = len(trace)
    tokens = int(result.output_tokens.sum() + result.prompt_tokens.sum())
    steps = sum(replica.steps for replica in result.replicas)
    wakeups = sum(replica.wakeups for replica in result.replicas)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = (
        f"{cost.timeouts_per(requests):7.1f} timeouts/request {requests / cost.seconds:9,.0f} requests/s "
        f"{tokens / cost.seconds:12,.0f} tokens/s {steps / cost.seconds:10,.0f} steps/s "
        f"{wakeups / requests:5.1f} wake-ups/request {peak_mib:6.0f} MiB "
        f"(raw timeout {cost.timeout_seconds * 1e6:.2f} us)"
    )
    return result, figures


_ANY_WORKLOAD = {
    "requests": 1,
    "arrivals": {"kind": "constant", "rate_per_s": 1.0},
    "prompt_tokens": {"kind": "constant", "value": 1},
    "output_tokens": {"kind": "constant", "value": 1},
}


def closed_loop_trace(requests: int, prompt: int, output: int) -> Trace:
    """Return equal requests without times, for a closed loop."""
    zeros = np.zeros(requests, dtype=np.int64)
    return Trace(zeros, zeros + prompt, zeros + output, TraceOrigin("closed loop", "generated"))


def _public(stem: str) -> Callable[[], Trace | None]:
    def load() -> Trace | None:
        path = find_trace(stem)
        return load_trace(path) if path else None

    return load


def _million() -> Trace | None:
    trace = _public("azure_llm_2023_conv")()
    if trace is None:
        return None
    copies = -(-1_000_000 // len(trace))
    tiled = scale_rate_by_compression(tile(trace, copies), 32.0)
    return replace(
        tiled,
        arrival_ns=tiled.arrival_ns[:1_000_000],
        prompt_tokens=tiled.prompt_tokens[:1_000_000],
        output_tokens=tiled.output_tokens[:1_000_000],
    )


_SYNC = {"async_scheduling": False}

CASES: dict[str, tuple[str, float | None, Callable[[], Trace | None], dict]] = {
    "conv-1": ("Azure conversation, 1 replica", 90, _public("azure_llm_2023_conv"), {"replicas": 1, **_SYNC}),
    "conv-4": (
        "Azure conversation, 4 replicas",
        130,
        _public("azure_llm_2023_conv"),
        {"replicas": 4, **_SYNC},
    ),
    "code-2": ("Azure code, 2 replicas", 90, _public("azure_llm_2023_code"), {"replicas": 2, **_SYNC}),
    "closed": (
        "closed loop, 256 clients, 1,000 output tokens",
        120,
        lambda: closed_loop_trace(2560, 512, 1000),
        {"replicas": 1, "concurrency": 256, **_SYNC},
    ),
    "conv-1-async": (
        "Azure conversation, 1 replica, async scheduling",
        None,
        _public("azure_llm_2023_conv"),
        {"replicas": 1},
    ),
    "code-2-async": (
        "Azure code, 2 replicas, async scheduling",
        None,
        _public("azure_llm_2023_code"),
        {"replicas": 2},
    ),
    "mooncake": (
        "Mooncake conversation, prefix caching, 4 replicas",
        1500,
        _public("mooncake_fast25_conversation"),
        {"replicas": 4},
    ),
    "million": ("one million requests, 32 replicas", 130, _million, {"replicas": 32, **_SYNC}),
}
"""Case: title, most timeouts per request, trace, options. The bars are for synchronous scheduling: planning
ahead costs one decision more per request that ends by a stop token: the engine wastes a step on it."""


def figures(names: list[str]) -> Iterator[str]:
    """Yield a line per case."""
    for name in names:
        title, bar, load, options = CASES[name]
        trace = load()
        if trace is None:
            yield f"{title:50} skipped: its trace is not here (simserve trace fetch)"
            continue
        _, line = run_case(trace, **options)
        yield f"{title:50} {line} bar {bar or '-'}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    chosen = parser.parse_args().case or [name for name in CASES if name != "million"]
    for line in figures(chosen):
        print(line, flush=True)
    sys.exit(0)
