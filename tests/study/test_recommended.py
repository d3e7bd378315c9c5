"""What a study recommends can be run as it stands: the written file gives the deployment of its row."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simserve.scenario import load_scenario

Call = Callable[..., Any]
SIZE = """
size:
  catalogue: {h100_sxm: {price_per_gpu_hour: 2.5}}
  tp: [1, 2]
  replicas: 4
  layouts: [aggregated, split]
"""
CAPACITY = "capacity: {from: 1, to: 40, precision: 0.2, replications: 1, curve: 0}\n"
SEARCH = """
search:
  over: {pools.0.replicas: [1, 2], pools.0.tp: [1, 2]}
  minimise: [cost_per_million_output_tokens]
  prices: {h100_sxm: 3.5}
  trials: 4
  sampler: random
"""
TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i * 0.125},300,20\n" for i in range(400))


def commands(stdout: str) -> list[str]:
    return [line.removeprefix("Run it: ") for line in stdout.splitlines() if line.startswith("Run it: ")]


def study_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "study.json").read_text(encoding="utf-8"))


def whole_run(simserve: Call, command: str, out: Path) -> dict[str, Any]:
    _, *args = shlex.split(command)
    done = simserve(*args, "--out", out, "--quiet")
    assert done.exit_code in (0, 3), done.stderr
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


def test_the_best_size_runs_as_written_with_the_pools_of_its_row(study_file: Call, simserve: Call) -> None:
    done = simserve("size", study_file(SIZE), "--out", "found")
    assert done.exit_code == 0, done.output
    study = study_of(Path("found"))
    files = [row["file"] for row in study["feasible"]]
    assert files == ["best.yaml", *(f"point-{i}.yaml" for i in range(2, len(files) + 1))]
    for row in study["feasible"]:
        it = load_scenario(Path("found") / row["file"])
        assert it.document.data["pools"] == row["pools"]
        assert it.scenario.size is None
        assert sum(p.replicas * p.tp * p.pp * p.dp for p in it.scenario.pools) == row["gpus"]
    assert commands(done.stdout)[0] == "simserve run found/best.yaml"
    summary = whole_run(simserve, "simserve run found/best.yaml", Path("again"))
    best = study["feasible"][0]
    if best["replications"] == 1:
        assert summary["whole"]["ttft_ms"]["p99"] == best["means"]["ttft_ms.p99"]
    before = {name: (Path("found") / name).read_bytes() for name in [*files, "study.json"]}
    assert simserve("size", "study.yaml", "--out", "found", "--force").exit_code == 0
    changed = [name for name in files if (Path("found") / name).read_bytes() != before[name]]
    assert changed == []


@pytest.mark.parametrize("out", ["found", "deep/er/found"])
def test_the_capacity_runs_as_written_from_any_folder_with_its_trace(
    study_file: Call, simserve: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, out: str
) -> None:
    """The scenario lies in a folder of its own, with the trace beside it; the run starts in another one."""
    plain = study_file(CAPACITY).read_text(encoding="utf-8")
    head, _, tail = plain.partition("workload:")
    place = tmp_path / "inputs"
    place.mkdir()
    (place / "mine.csv").write_text(TRACE, encoding="utf-8")
    text = f"{head}workload: {{trace: mine.csv}}\n{tail[tail.index('pools:') :]}"
    (place / "mine.yaml").write_text(text, encoding="utf-8")
    done = simserve("capacity", place / "mine.yaml", "--out", out)
    assert done.exit_code == 0, done.output
    study = study_of(Path(out))
    (row,) = [point for point in study["points"] if "file" in point]
    assert row["load"] == study["capacity"]["low"]
    assert commands(done.stdout) == [f"simserve run {out}/best.yaml"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    summary = whole_run(simserve, f"simserve run {tmp_path / out / 'best.yaml'}", Path("again"))
    assert summary["whole"]["ttft_ms"]["p99"] == row["means"]["ttft_ms.p99"]


def test_the_points_of_a_search_run_as_written_at_their_prices(study_file: Call, simserve: Call) -> None:
    pytest.importorskip("optuna")
    done = simserve("search", study_file(SEARCH), "--out", "found")
    assert done.exit_code == 0, done.output
    study = study_of(Path("found"))
    assert study["front"]
    for i in study["front"]:
        row = study["points"][i]
        it = load_scenario(Path("found") / row["file"])
        (pool,) = it.scenario.pools
        assert (pool.replicas, pool.tp) == (
            row["settings"]["pools.0.replicas"],
            row["settings"]["pools.0.tp"],
        )
        assert pool.price_per_gpu_hour == 3.5
        assert f"simserve run found/{row['file']}" in commands(done.stdout)


@pytest.mark.parametrize("out", ["/dev/null/x", "/proc/x", "/proc/x/y"])
@pytest.mark.parametrize("kind", ["run", "capacity"])
def test_a_folder_that_cannot_be_made_is_named(study_file: Call, simserve: Call, kind: str, out: str) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    done = simserve(kind, study_file(CAPACITY), "--out", out)
    assert done.exit_code == 2
    assert done.stderr.startswith("/proc" if out.startswith("/proc") else "/dev/null")
    assert "cannot be made" in done.stderr


@pytest.mark.parametrize("flags", [(), ("--check",)])
def test_a_limit_in_seconds_is_remarked_on(study_file: Call, simserve: Call, flags: tuple[str, ...]) -> None:
    """Llama-3.1-8B reads 2 x 6.98e9 bytes of layer weights per step: 4.17 ms at the 3.35 TB/s of an H100."""
    file = study_file("", ("ttft_ms: 500, tpot_ms: 25", "ttft_ms: 0.5, tpot_ms: 25"))
    stderr = simserve("run", file, *flags).stderr
    assert "warning: slo.ttft_ms 0.5 is below 4.17 ms" in stderr
    assert "did you mean 500?" in stderr
    assert "tpot_ms" not in stderr


@pytest.mark.parametrize(("limit", "warned"), [(4.1, True), (4.2, False), (0.001, True)])
def test_the_remark_starts_where_a_step_of_an_idle_replica_ends(
    study_file: Call, simserve: Call, limit: float, warned: bool
) -> None:
    """Two GPUs with tensor parallelism would halve the bound: there a limit of 4.1 ms can be met."""
    file = study_file("", ("tpot_ms: 25", f"tpot_ms: {limit}"))
    stderr = simserve("run", file, "--check").stderr
    assert ("slo.tpot_ms" in stderr) == warned
    assert ("did you mean" in stderr) == (limit == 4.1)
    two = simserve("run", file, "--check", "--set", "pools.0.tp=2").stderr
    assert ("slo.tpot_ms" in two) == (limit < 2.0)
