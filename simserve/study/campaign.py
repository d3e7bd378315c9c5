"""One study at work: runs go to the executor, finished ones to the journal, and the counts to the progress.

What was done before, by this study (journal) or another one (cache), is not done again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simserve.errors import ScenarioError
from simserve.metrics.measures import short_names
from simserve.scenario.load import LoadedScenario, changed
from simserve.study import journal
from simserve.study.executors.base import EXECUTORS, Executor, Outcome, Task
from simserve.study.files import NAMES, Row
from simserve.study.journal import Journal, PointCache

# What every study says of the scenario that it studies, so that its page can name it.


def facts_of(it: LoadedScenario) -> dict[str, Any]:
    """Return name, model, engine, pools, currency and seed, as study.json holds them."""
    scenario = it.scenario
    return {
        "name": scenario.name,
        "model": scenario.model,
        "engine": scenario.engine.preset or scenario.engine.policy,
        "pools": [
            {"name": pool.name, "role": pool.role, "gpu": pool.gpu, "replicas": pool.replicas}
            | {name: getattr(pool, name) for name in ("tp", "pp", "dp", "ep")}
            for pool in scenario.pools
        ],
        "currency": scenario.currency,
        "seed": scenario.seed,
    }


OURS = frozenset(
    {
        journal.NAME,
        journal.LOCK,
        journal.HOLDER,
        "results.parquet",
        "study.json",
        "report.html",
        "search.log",
        "search.log.lock",
    }
)


@dataclass
class Counts:
    """Where a study stands; a progress display reads it."""

    done: int = 0
    """Runs finished, those found in the journal or the cache included."""
    left: int = 0
    """Runs that are known to be needed still."""
    expected: int = 0
    """Runs beyond those that the study is likely to need, by its own estimate."""
    pruned: int = 0
    """Points that were not run: dropped, bounded or stopped early."""
    found: int = 0
    """Runs of `done` that were there already."""
    simulated_requests: int = 0
    """Requests that were simulated for this study, by this process or an earlier one."""
    best: str = ""
    started_s: float = field(default_factory=time.monotonic)

    @property
    def eta_s(self) -> float | None:
        """Seconds to go at the pace so far; None if there is no pace."""
        fresh = self.done - self.found
        return (time.monotonic() - self.started_s) / fresh * (self.left + self.expected) if fresh else None


Show = Callable[[Counts], None]


@dataclass
class Options:
    """How a study is done; none of it changes what it finds."""

    workers: int | None = None
    executor: str = "local"
    address: str | None = None
    cache: Path | None = None
    show: Show = lambda counts: None


class Campaign:
    """Runs of one scenario with changed values."""

    def __init__(self, it: LoadedScenario, runs: Journal, executor: Executor, options: Options) -> None:
        self.it = it
        self.counts = Counts()
        self.executor = executor
        self._journal = runs
        self._cache = PointCache(options.cache)
        self._show = options.show
        self._counted: set[str] = set()
        self.prices: Mapping[str, float] = {}
        """Price of a GPU and hour by its name, for every pool of it."""
        self.rank: Callable[[Row], tuple[float, ...]] | None = None
        """What makes a run the best so far, for the progress: the least is best."""
        self._least: tuple[float, ...] | None = None

    def task(self, settings: Mapping[str, Any], replication: int = 0) -> Task:
        """Return the run of a point; replications differ in the seed, which all points share."""
        seeded = {**settings, "seed": self.it.scenario.seed + replication}
        seeded |= priced(self.it, seeded, self.prices)
        return Task(journal.run_key(changed(self.it, seeded)), seeded)

    def run(self, tasks: Sequence[Task]) -> dict[str, Outcome]:
        """Return the outcomes of tasks by key, in the order of the tasks."""
        unique = {task.key: task for task in tasks}
        missing = [task for task in unique.values() if not self._known(task)]
        self.counts.left += len(missing)
        self.show()
        for outcome in self.executor.run(missing):
            self._journal.add(outcome)
            self._cache.put(outcome)
            self.counts.left -= 1
            self._count(outcome, unique[outcome.key], found=False)
        return {key: self._journal.outcomes[key] for key in unique}

    def show(self) -> None:
        """Let the progress be seen."""
        self._show(self.counts)

    def _known(self, task: Task) -> bool:
        outcome = self._journal.outcomes.get(task.key)
        if outcome is None:
            outcome = self._cache.get(task.key)
            if outcome is None:
                return False
            self._journal.add(outcome)
        self._count(outcome, task, found=True)
        return True

    def _count(self, outcome: Outcome, task: Task, found: bool) -> None:
        if outcome.key in self._counted:
            return
        self._counted.add(outcome.key)
        self.counts.done += 1
        self.counts.found += found
        if outcome.row is not None:
            self.counts.simulated_requests += outcome.row["simulated_requests"]
            self._compare(outcome.row, task)
        self.show()

    def _compare(self, row: Row, task: Task) -> None:
        """Note the run if it is the best so far."""
        rank = self.rank(row) if self.rank else None
        if rank is not None and (self._least is None or rank < self._least):
            self._least = rank
            names = short_names(task.settings)
            self.counts.best = ", ".join(f"{names[path]} {value}" for path, value in task.settings.items())


@contextmanager
def campaign(
    it: LoadedScenario, kind: str, folder: Path, options: Options, force: bool = False
) -> Iterator[Campaign]:
    """Open the study of a kind in `folder` and go on where it stopped, if it did.

    Raises `ScenarioError` if the folder holds something else, or another process is at work in it.
    """
    check_folder(folder, force)
    with journal.locked(folder):
        path = folder / journal.NAME
        if force:
            path.unlink(missing_ok=True)
        runs = Journal(path, study_key(it, kind))
        executor = EXECUTORS.get(options.executor)(it, options.workers, options.address)
        try:
            yield Campaign(it, runs, executor, options)
        except ScenarioError:
            if all(outcome.row is None for outcome in runs.outcomes.values()):
                path.unlink(
                    missing_ok=True
                )  # a mistake was made, no run: nothing stands in its way once mended
            raise
        finally:
            executor.close()
            runs.close()


def priced(it: LoadedScenario, settings: Mapping[str, Any], prices: Mapping[str, float]) -> dict[str, Any]:
    """Return the prices of a point's pools, by path, for the GPUs that have one in `prices`."""
    if not prices:
        return {}
    pools = changed(it, settings).scenario.pools
    named = {f"pools.{i}.price_per_gpu_hour": prices.get(pool.gpu) for i, pool in enumerate(pools)}
    return {path: price for path, price in named.items() if price is not None}


def study_key(it: LoadedScenario, kind: str) -> str:
    """Return the hash of a study: its kind, the whole scenario file, and what its runs depend on."""
    plain = changed(it, {})
    text = json.dumps([kind, it.document.data, journal.run_key(plain)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def check_folder(folder: Path, force: bool) -> None:
    """Refuse a folder that holds what no study wrote."""
    if folder.exists() and not folder.is_dir():
        raise ScenarioError(f"{folder}: is a file, not a folder")
    present = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    foreign = sorted(
        name for name in present - OURS if not name.endswith(".partial") and not NAMES.fullmatch(name)
    )
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise ScenarioError(
            f"{folder}: is not the folder of a study, it holds {', '.join(foreign[:3])}{more}"
        )
    if present and journal.NAME not in present and not force and present - {journal.LOCK, journal.HOLDER}:
        raise ScenarioError(f"{folder}: holds a study without its journal; --force starts over")
