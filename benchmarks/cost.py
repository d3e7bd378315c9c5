"""CPU cost in the unit that holds on any machine: raw SimPy timeouts, measured in the same process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import simpy

T = TypeVar("T")

_TIMEOUTS = 200_000


def timeout_seconds() -> float:
    """Return the CPU seconds of one `yield env.timeout(1)` (best of three)."""

    def ticks(env: simpy.Environment):
        for _ in range(_TIMEOUTS):
            yield env.timeout(1)

    def once() -> float:
        env = simpy.Environment()
        env.process(ticks(env))
        begin = time.process_time()
        env.run()
        return (time.process_time() - begin) / _TIMEOUTS

    return min(once() for _ in range(3))


@dataclass(frozen=True)
class Cost:
    """CPU time of one call, and of a raw timeout around it."""

    seconds: float
    timeout_seconds: float

    def timeouts_per(self, count: int) -> float:
        """Return the cost in raw SimPy timeouts per one of `count` things."""
        return self.seconds / self.timeout_seconds / count


def measure(call: Callable[[], T]) -> tuple[T, Cost]:
    """Run `call` once and return its value with its cost; the unit is measured before and after."""
    before = timeout_seconds()
    begin = time.process_time()
    value = call()
    seconds = time.process_time() - begin
    return value, Cost(seconds, (before + timeout_seconds()) / 2)
