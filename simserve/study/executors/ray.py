"""Workers of a Ray cluster: `--executor ray`, on this machine or at `--address`.

The scenario, its trace, its profiles and its other files travel once, as one object in Ray's store; a worker
lays them down in a folder of its own and keeps what it has loaded. A run whose worker is lost goes to
another.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from simserve.errors import ScenarioError
from simserve.scenario.load import LoadedScenario, find, shipped
from simserve.study.executors.base import (
    EXECUTORS,
    RETRIES,
    Bench,
    Outcome,
    Task,
    WorkerLostError,
    packed,
    unpacked,
)

CPUS_PER_WORKER = 1


def sent_files(it: LoadedScenario) -> dict[str, bytes]:
    """Return the files that a scenario names and that do not ship with simserve, by name."""
    scenario = it.scenario
    names: list[Any] = [scenario.workload.trace, scenario.model, scenario.engine.overhead, *scenario.profiles]
    names += [pool.engine.overhead for pool in scenario.pools]
    sent: dict[str, bytes] = {}
    for name in filter(None, names):
        path = find(name, it.folder)
        if path is None or path == shipped(name):
            continue
        if path.is_dir():
            files = (file for file in path.rglob("*") if file.is_file())
            sent |= {str(Path(name) / file.relative_to(path)): file.read_bytes() for file in files}
        else:
            sent[name] = path.read_bytes()
    return {name.lstrip("/"): content for name, content in sent.items()}


def _relative(data: Any, folder: Path) -> Any:
    """Return the scenario with names of files from the root on cut to where a worker lays them down."""
    if isinstance(data, dict):
        return {key: _relative(value, folder) for key, value in data.items()}
    if isinstance(data, list):
        return [_relative(value, folder) for value in data]
    from_root = isinstance(data, str) and data.startswith("/") and find(data, folder) is not None
    return data.lstrip("/") if from_root else data


class Bag:
    """A bench on a worker, with the files that were sent."""

    def __init__(self, scenario: tuple[Any, ...], files: dict[str, bytes]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="simserve-")
        root = Path(self._folder.name)
        for name, content in files.items():
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        source, data, _ = scenario
        self._bench = Bench(unpacked(source, data, str(root)))

    def run(self, task: Task) -> Outcome:
        """Do one run."""
        return self._bench.run(task)

    def process_id(self) -> int:
        """Return the number of the worker's process."""
        return os.getpid()


class RayExecutor:
    """One actor per worker; each has at most one run at a time."""

    def __init__(self, it: LoadedScenario, workers: int | None, address: str | None) -> None:
        self._ray = _ray()
        self._started = not self._ray.is_initialized()
        if self._started:
            self._connect(workers, address)
        cpus = int(self._ray.cluster_resources().get("CPU", 1))
        self.workers = max(1, min(workers or cpus, cpus))
        source, data, folder = packed(it)
        self._scenario = source, _relative(data, it.folder), folder
        self._files = self._ray.put(sent_files(it))
        self._make = self._ray.remote(num_cpus=CPUS_PER_WORKER, max_restarts=0)(Bag)
        self.actors: list[Any] = []

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """See `Executor`."""
        todo = deque(tasks)
        lost: dict[str, int] = {}
        busy: dict[Any, tuple[Any, Task]] = {}
        idle = list(self.actors)
        while todo or busy:
            while todo and len(busy) < self.workers:
                actor, task = idle.pop() if idle else self._new(), todo.popleft()
                busy[actor.run.remote(task)] = actor, task
            ready, _ = self._ray.wait(list(busy), num_returns=1)
            actor, task = busy.pop(ready[0])
            try:
                outcome = self._ray.get(ready[0])
            except (self._ray.exceptions.RayActorError, self._ray.exceptions.WorkerCrashedError) as error:
                self.actors.remove(actor)
                lost[task.key] = lost.get(task.key, 0) + 1
                if lost[task.key] > RETRIES:
                    times = RETRIES + 1
                    raise WorkerLostError(f"{times} workers were lost over the same run: {error}") from error
                todo.appendleft(task)
                continue
            idle.append(actor)
            yield outcome

    def close(self) -> None:
        """See `Executor`."""
        for actor in self.actors:
            self._ray.kill(actor)
        self.actors = []
        if self._started:
            self._ray.shutdown()

    def _new(self) -> Any:
        actor = self._make.remote(self._scenario, self._files)
        self.actors.append(actor)
        return actor

    def _connect(self, workers: int | None, address: str | None) -> None:
        quiet = {"log_to_driver": False, "include_dashboard": False, "logging_level": "ERROR"}
        try:
            if address is None:
                self._ray.init(num_cpus=workers, address="local", **quiet)
            else:
                self._ray.init(address=address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            where = address or "this machine"
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ScenarioError(f"--executor ray: no Ray cluster at {where}: {first}") from error


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ScenarioError(
            "--executor ray needs Ray, which is not installed; in your clone: pip install -e '.[ray]' "
            "(or leave --executor out: local processes need nothing)"
        ) from error
    import ray.exceptions

    return ray


@EXECUTORS.register("ray")
def make(it: LoadedScenario, workers: int | None, address: str | None) -> RayExecutor:
    """Return the workers of a Ray cluster."""
    return RayExecutor(it, workers, address)
