"""Processes on this machine: as many as cores and memory bear, each loading its files once.

A worker is a fresh interpreter that reads tasks from a pipe. When the pipe closes, because this process
ended in whatever way, it ends too. A worker that is lost (killed, out of memory) is replaced, and its task is
done again.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from simserve.errors import InvariantError, ScenarioError
from simserve.scenario.load import LoadedScenario
from simserve.study.executors.base import EXECUTORS, RETRIES, Bench, Outcome, Task, WorkerLostError, packed
from simserve.units import GIB

WORKER_BYTES = GIB
"""Memory set aside for a worker [assumption; half of it is used for a trace of 19,366 requests]."""


def workers_borne() -> int:
    """Return how many workers this machine bears: its cores, less where memory is short."""
    return max(1, min(_cores(), _free_bytes() // WORKER_BYTES))


def _cores() -> int:
    """Return the cores that this process may use; all of them where a system has no such choice."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_bytes() -> int:
    """Return the memory that is free here, as the kernel estimates it; all there is, or enough, elsewhere."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) << 10
    if not hasattr(os, "sysconf"):
        return _cores() * WORKER_BYTES
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _inherited(handle: int) -> dict[str, Any]:
    """Return the options of `Popen` with which a process gets a pipe's end; on Windows it is a handle."""
    if sys.platform != "win32":
        return {"pass_fds": [handle]}
    os.set_handle_inheritable(handle, True)
    startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})
    return {"startupinfo": startup, "close_fds": True}


class _Worker:
    def __init__(self, scenario: tuple[Any, ...]) -> None:
        self.pipe, theirs = Pipe()
        code = f"from simserve.study.executors.base import main; main({theirs.fileno()})"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            **_inherited(theirs.fileno()),
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.task: Task | None = None
        with contextlib.suppress(OSError):  # it is gone already: seen when its answer is awaited
            self.pipe.send(scenario)

    def give(self, task: Task) -> None:
        self.task = task
        with contextlib.suppress(OSError):
            self.pipe.send(task)

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.wait()


class LocalExecutor:
    """Keeps its workers between calls of `run`."""

    def __init__(self, it: LoadedScenario, workers: int) -> None:
        self.workers = workers
        self._it = it
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []
        for _ in range(workers):  # they import while the points are planned
            self._idle.append(self._new())

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """See `Executor`."""
        todo = deque(tasks)
        lost: dict[str, int] = {}
        busy: dict[Connection, _Worker] = {}
        while todo or busy:
            while todo and len(busy) < self.workers:
                worker = self._idle.pop() if self._idle else self._new()
                worker.give(todo.popleft())
                busy[worker.pipe] = worker
            for pipe in wait(list(busy)):
                worker = busy.pop(pipe)  # pyright: ignore[reportArgumentType]
                task, worker.task = worker.task, None
                assert task is not None
                answer = self._answer(worker)
                if answer is None:
                    self._count(lost, task)
                    todo.appendleft(task)
                    continue
                self._idle.append(worker)
                yield answer

    def close(self) -> None:
        """See `Executor`."""
        for worker in self._all:
            worker.end()
        self._all, self._idle = [], []

    def _new(self) -> _Worker:
        worker = _Worker(packed(self._it))
        self._all.append(worker)
        return worker

    def _answer(self, worker: _Worker) -> Outcome | None:
        """Return what a worker says; None if it is lost. What broke in it is raised here."""
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            worker.end()
            self._all.remove(worker)
            return None
        if isinstance(answer, str):
            raise InvariantError(answer)
        return answer

    def _count(self, lost: dict[str, int], task: Task) -> None:
        lost[task.key] = lost.get(task.key, 0) + 1
        if lost[task.key] > RETRIES:
            raise WorkerLostError(f"{RETRIES + 1} workers were lost over the same run: {task.settings}")


class InProcess:
    """Runs in this process, for a single worker: nothing is started or sent."""

    workers = 1

    def __init__(self, it: LoadedScenario) -> None:
        self._bench = Bench(it)

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """See `Executor`."""
        for task in tasks:
            yield self._bench.run(task)

    def close(self) -> None:
        """See `Executor`."""


@EXECUTORS.register("local")
def make(it: LoadedScenario, workers: int | None, address: str | None) -> LocalExecutor | InProcess:
    """Return processes on this machine; one worker is this process itself."""
    if address is not None:
        raise ScenarioError("--address belongs to --executor ray; local processes have no address")
    count = workers or workers_borne()
    return InProcess(it) if count == 1 else LocalExecutor(it, count)
