"""One thing to measure, and what an operation must offer to be measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from simserve.profiler.device import Device
from simserve.profiler.shapes import Shapes

Key = dict[str, Any]
"""Values of a table's key columns."""


@dataclass(frozen=True)
class Case:
    """One kernel call to time."""

    op: str
    key: tuple[tuple[str, Any], ...]
    backend: str
    level: int
    """0 for the corners of a grid, higher for points that refine it."""
    extra: tuple[tuple[str, Any], ...] = ()
    """Columns of the row beside the key (what a reader may want to know, such as bytes per row)."""

    @property
    def id(self) -> str:
        """Return what tells this case from all others, the same in every run."""
        return json.dumps([self.op, dict(self.key), self.backend], sort_keys=True)

    def __getitem__(self, column: str) -> Any:
        """Return the value of a key column."""
        return dict(self.key)[column]


class Kernel(NamedTuple):
    """A case made ready on the device."""

    call: Callable[[int], Any]
    """Runs it on the i-th copy of its inputs and returns its output."""
    sets: int
    error: Callable[[], float]
    """Runs it once and returns its error relative to a float64 reference."""
    tolerance: float
    name: str
    version: str
    capturable: bool = True
    """False if it must not be replayed from a CUDA graph: its launch is what is measured."""
    rows: int = 1
    """Tokens that it works on: in a model, what runs before it works on as many."""


class Table(Protocol):
    """What can be planned: the cases of one table."""

    @property
    def name(self) -> str:
        """Name of the table."""
        ...

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns of the table's key."""
        ...

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield what is to be measured for these shapes, by every backend that is installed."""
        ...


class Op(Table, Protocol):
    """A table whose kernels one device runs alone."""

    def build(self, case: Case, device: Device) -> Kernel:
        """Allocate inputs and return the kernel.

        Raises `NotEnoughMemory`, `CannotTime`, or what the library raises.
        """
        ...


def refinement(count: int) -> list[int]:
    """Return the level of each of `count` sweep points: ends 0, middle 1, quarters 2, ...

    So that measuring level by level gives a usable grid whenever it stops.
    """
    levels = [0] * count
    spans, level = [(0, count - 1)], 1
    while spans:
        following = []
        for low, high in spans:
            middle = (low + high) // 2
            if middle in (low, high):
                continue
            levels[middle] = level
            following += [(low, middle), (middle, high)]
        spans, level = following, level + 1
    return levels
