"""Workers that are lost, and a real Ray on this machine: the same bytes everywhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simserve.scenario import load_scenario
from simserve.scenario.load import LoadedScenario, changed
from simserve.study.executors.base import EXECUTORS, Bench, Outcome, Task
from simserve.study.executors.local import LocalExecutor
from simserve.study.executors.ray import RayExecutor

N = 12


@pytest.fixture
def it(study_file: Callable[..., Path]) -> LoadedScenario:
    return load_scenario(study_file())


def tasks() -> list[Task]:
    return [Task(f"task {n}", {"engine.max_num_seqs": n, "seed": 3}) for n in range(1, N + 1)]


def expected(it: LoadedScenario) -> dict[str, Outcome]:
    bench = Bench(it)
    return {task.key: bench.run(task) for task in tasks()}


def killing(found: Iterator[Outcome], victim: Callable[[], int]) -> dict[str, Outcome]:
    """Collect outcomes, and kill a worker after the third."""
    outcomes: dict[str, Outcome] = {}
    for outcome in found:
        assert outcome.key not in outcomes, "a run was repeated"
        outcomes[outcome.key] = outcome
        if len(outcomes) == 3:
            os.kill(victim(), signal.SIGKILL)
    return outcomes


def test_a_lost_local_worker_is_replaced(it: LoadedScenario) -> None:
    executor = LocalExecutor(it, 2)
    try:
        found = killing(executor.run(tasks()), lambda: executor._all[0].process.pid)
    finally:
        executor.close()
    assert found == expected(it)


def test_workers_end_with_the_process_that_started_them(it: LoadedScenario) -> None:
    executor = LocalExecutor(it, 1)
    assert len(list(executor.run(tasks()[:1]))) == 1
    worker = executor._all[0]
    worker.pipe.close()  # as when this process is killed
    assert worker.process.wait(20) == 0


def test_what_breaks_in_a_worker_is_raised_here(it: LoadedScenario) -> None:
    executor = LocalExecutor(it, 1)
    broken: Any = {"seed": 3, 5: "no path"}
    try:
        with pytest.raises(Exception, match="AttributeError"):
            list(executor.run([Task("broken", broken)]))
    finally:
        executor.close()


def test_an_executor_that_is_unknown_is_refused(
    study_file: Callable[..., Path], simserve: Callable[..., Any]
) -> None:
    path = study_file("sweep: {over: {pools.0.tp: [1]}}\n")
    done = simserve("sweep", path, "--out", "out", "--executor", "raya")
    assert done.exit_code == 2
    assert "did you mean 'ray'" in done.stderr


def test_an_address_without_a_cluster_is_refused(
    study_file: Callable[..., Path], simserve: Callable[..., Any]
) -> None:
    path = study_file("sweep: {over: {pools.0.tp: [1]}}\n")
    done = simserve("sweep", path, "--out", "out", "--address", "somewhere:6379")
    assert done.exit_code == 2
    assert "--address belongs to --executor ray" in done.stderr


def test_a_missing_ray_says_what_to_install(
    study_file: Callable[..., Path], simserve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    path = study_file("sweep: {over: {pools.0.tp: [1]}}\n")
    done = simserve("sweep", path, "--out", "out", "--executor", "ray")
    assert done.exit_code == 2
    assert "pip install -e '.[ray]'" in done.stderr


@pytest.fixture
def ray_executor(it: LoadedScenario) -> Iterator[RayExecutor]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    executor = EXECUTORS.get("ray")(it, 2, None)
    assert isinstance(executor, RayExecutor)
    yield executor
    executor.close()


def test_ray_gives_the_same_rows_though_a_worker_is_killed_midway(
    it: LoadedScenario, ray_executor: RayExecutor
) -> None:
    import ray

    assert ray_executor.workers == 2
    found = killing(ray_executor.run(tasks()), lambda: ray.get(ray_executor.actors[0].process_id.remote()))
    assert found == expected(it)
    assert len(ray_executor.actors) == 2


def test_files_of_a_scenario_travel_to_ray(tmp_path: Path) -> None:
    from simserve.study.executors.base import packed
    from simserve.study.executors.ray import Bag, _relative, sent_files

    trace = tmp_path / "my.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,100,5\n1.0,50,7\n")
    base = load_scenario("scenarios/demo.yaml", ["workload.rate_scale=1", f"workload.trace={trace}"])
    here = Bench(base).run(Task("k", {"seed": 0}))
    source, data, folder = packed(base)
    bag = Bag((source, _relative(data, base.folder), folder), sent_files(base))
    trace.unlink()
    assert here.row is not None
    assert bag.run(Task("k", {"seed": 0})) == here
    assert changed(base, {}).scenario.workload.trace == str(trace)
