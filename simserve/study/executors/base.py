"""The contract between a study and whatever does its runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from simserve.errors import SimserveError
from simserve.registry import Registry
from simserve.scenario.load import LoadedScenario
from simserve.study.bench import Outcome, Task

RETRIES = 3
"""Times that a task is given to another worker when its worker is lost."""


class WorkerLostError(SimserveError):
    """Workers were lost again and again over one task."""


class Executor(Protocol):
    """Does runs, several at a time."""

    workers: int
    """How many runs it does at a time."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Yield the outcome of each task as it ends, in any order; a lost worker's task is done again."""
        ...

    def close(self) -> None:
        """Let the workers go."""
        ...


class Maker(Protocol):
    """Makes an executor."""

    def __call__(self, it: LoadedScenario, workers: int | None, address: str | None) -> Executor:
        """`workers`: most runs at a time, None for what the machine bears; `address`: of a cluster."""
        ...


EXECUTORS: Registry[Maker] = Registry("executor", "simserve.study.executors")
