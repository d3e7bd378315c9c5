"""The contract between a study and whatever does its runs."""

from __future__ import annotations

import signal
import sys
import traceback
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from simserve.core import Trace
from simserve.deploy.build import Parts, build
from simserve.deploy.workload import build_trace, depends_on_seed
from simserve.errors import SimserveError, UserError
from simserve.registry import Registry
from simserve.scenario.document import Document
from simserve.scenario.load import LoadedScenario, changed
from simserve.study.files import Row, simulate_row

# Runs one point after another in one process; profiles, models and traces are loaded once.
#
# A bench is made from a scenario file's text, which is all that a worker elsewhere is sent beside the files.

KEPT_TRACES = 4


@dataclass(frozen=True)
class Task:
    """One run: a scenario with some values changed."""

    key: str
    """Hash of all that its result depends on."""
    settings: dict[str, Any]
    """Values by path, `seed` included."""


@dataclass(frozen=True)
class Outcome:
    """What became of a task: a row, or the reason why it cannot be run."""

    key: str
    row: Row | None
    reason: str = ""


class Bench:
    """A scenario and what its points share."""

    def __init__(self, it: LoadedScenario) -> None:
        self.it = it
        self._parts = Parts()
        self._traces: OrderedDict[str, Trace] = OrderedDict()

    def run(self, task: Task) -> Outcome:
        """Simulate a task. A point that cannot run is an outcome, not an error: it does not fit, say."""
        try:
            it = changed(self.it, task.settings)
            deployment = build(it, self.trace(it), self._parts)
            return Outcome(task.key, simulate_row(deployment))
        except UserError as error:
            return Outcome(task.key, None, str(error))

    def trace(self, it: LoadedScenario) -> Trace:
        """Return the workload of a scenario; the last few are kept."""
        workload = it.scenario.workload
        key = f"{workload!r} {it.scenario.seed if depends_on_seed(workload) else ''}"
        if key not in self._traces:
            self._traces[key] = build_trace(it)
            while len(self._traces) > KEPT_TRACES:
                self._traces.popitem(last=False)
        self._traces.move_to_end(key)
        return self._traces[key]


def packed(it: LoadedScenario) -> tuple[str, dict[str, Any], str]:
    """Return a loaded scenario as plain values that can be sent to another process."""
    return it.document.source, it.document.data, str(it.folder.resolve())


def unpacked(source: str, data: dict[str, Any], folder: str) -> LoadedScenario:
    """Return what `packed` was given, without line numbers and variants."""
    from simserve.scenario.spec import Scenario

    document = Document(source, data, {(): source})
    return LoadedScenario(Scenario.model_validate(data), document, Path(folder))


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


# What a worker process does: take a scenario, then task after task, until the pipe closes.


def main(fileno: int) -> None:
    """Serve the pipe with this number. Ctrl-C is the business of the process at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = _end(fileno)
    try:
        _serve(pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _end(handle: int) -> Connection:
    """Return the pipe's end with this number; on Windows pipes are a class of their own."""
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        return PipeConnection(handle)
    return Connection(handle)


def _serve(pipe: Connection) -> None:

    bench = Bench(unpacked(*pipe.recv()))
    while True:
        task = pipe.recv()
        try:
            answer = bench.run(task)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        pipe.send(answer)
