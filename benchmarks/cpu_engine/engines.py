"""What the closed loop serves, and with what: one interface for our engine and transformers'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from benchmarks.cpu_engine.clock import Clock, CpuClock, WallClock
from benchmarks.cpu_engine.model import Model
from benchmarks.cpu_engine.scheduler import Scheduler, Sequence
from benchmarks.cpu_engine.server import Server, Step
from simserve.model import load_model

BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, BUDGET = 600, 64, 16, 512


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


class Engine(Protocol):
    """Serves one model again and again."""

    steps: list[Step]
    """Those of the last run, where it says."""

    def serve(self, requests: list[Sequence]) -> list[Sequence]:
        """Serve requests at their arrival times; sets first and last token's time."""
        ...

    def loop_us(self) -> float:
        """Return microseconds of a decode step of 8 sequences beside the model."""
        ...


class OwnEngine:
    """The engine of this folder."""

    def __init__(self, name: str, clock: Callable[[], Clock] = WallClock) -> None:
        """Make the model; each run has a clock of its own."""
        self.model = Model(load_model(name), BLOCKS, BLOCK_SIZE)
        self.steps: list[Step] = []
        self._clock = clock

    def serve(self, requests: list[Sequence]) -> list[Sequence]:
        """Serve requests (see `Engine`)."""
        server = self._server()
        served = server.serve(requests)
        self.steps = server.steps
        return served

    def loop_us(self) -> float:
        """Return microseconds beside the model (see `Engine`)."""
        server = self._server()
        server.compute = lambda inputs: [0] * len(inputs.sampled)
        server.serve([Sequence(i, 0.0, [1] * 64, 200) for i in range(8)])
        return 1e6 * float(np.median([step.whole_s for step in server.steps if not step.chunks]))

    def _server(self) -> Server:
        scheduler = Scheduler(BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, BUDGET)
        return Server(self.model, scheduler, clock=self._clock())


class Transformers:
    """transformers' continuous batching; it does not say what its steps held, and has a thread of its own."""

    def __init__(self, name: str) -> None:
        """Make the model."""
        from benchmarks.cpu_engine.transformers_engine import TransformersEngine

        self._engine = TransformersEngine(load_model(name), BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, BUDGET)
        self.steps: list[Step] = []

    def serve(self, requests: list[Sequence]) -> list[Sequence]:
        """Serve requests (see `Engine`)."""
        return self._engine.serve(requests)

    def loop_us(self) -> float:
        """Return microseconds beside the model (see `Engine`)."""
        return self._engine.loop_us(8, 100)


def own_by_cpu_time(name: str) -> OwnEngine:
    """Return our engine, whose seconds are those of its own thread's CPU time."""
    return OwnEngine(name, CpuClock)


ENGINES: dict[str, Callable[[str], Engine]] = {
    "own": OwnEngine,
    "own-cpu-time": own_by_cpu_time,
    "transformers": Transformers,
}
BACKENDS = {"own": ("torch",), "own-cpu-time": ("torch",), "transformers": ("transformers",)}
"""Whose attention each computes."""
