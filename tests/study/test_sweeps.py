"""Sweeps from the command line: points, reasons, bytes, resuming, and what is refused."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

SWEEP = """
sweep:
  over: {engine.max_num_seqs: [2, 4, 8], pools.0.tp: [1, 2]}
  where:
    - {keep: pools.0.tp * engine.max_num_seqs <= 8, because: too many at once}
"""


def rows(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "results.parquet").to_pylist()


def test_every_point_is_run_or_dropped_with_a_reason(study_file: Callable, simserve: Callable) -> None:
    done = simserve("sweep", study_file(SWEEP), "--out", "out", "--workers", 1)
    assert done.exit_code == 0, done.output
    found = {(row["engine.max_num_seqs"], row["pools.0.tp"]): row for row in rows(Path("out"))}
    assert set(found) == {(s, t) for s in (2, 4, 8) for t in (1, 2)}
    for (seqs, tp), row in found.items():
        assert row["status"] == ("dropped" if seqs * tp > 8 else "done")
        assert row["reason"] == ("too many at once" if seqs * tp > 8 else "")
        assert row["completed"] == (None if seqs * tp > 8 else 60)
        assert row["gpus"] == (None if seqs * tp > 8 else tp)


def test_a_point_gives_what_a_run_of_it_gives(study_file: Callable, simserve: Callable) -> None:
    path = study_file(SWEEP)
    assert simserve("sweep", path, "--out", "out", "--workers", 1).exit_code == 0
    options = ("--set", "engine.max_num_seqs=4", "--set", "pools.0.tp=2", "--out", "run")
    assert simserve("run", path, *options).exit_code == 0
    summary = json.loads(Path("run/summary.json").read_text())
    (row,) = (r for r in rows(Path("out")) if r["engine.max_num_seqs"] == 4 and r["pools.0.tp"] == 2)
    assert row["ttft_ms.p99"] == summary["whole"]["ttft_ms"]["p99"]
    assert row["cost_per_million_output_tokens"] == summary["cost_per_million_output_tokens"]


def test_replications_share_their_seeds_across_points(study_file: Callable, simserve: Callable) -> None:
    path = study_file("sweep: {over: {pools.0.tp: [1, 2]}, replications: 3}\n")
    assert simserve("sweep", path, "--out", "out", "--workers", 1).exit_code == 0
    assert [row["seed"] for row in rows(Path("out"))] == [3, 4, 5, 3, 4, 5]
    for point in json.loads(Path("out/study.json").read_text())["points"]:
        low, high = point["intervals"]["ttft_ms.mean"]
        assert low < point["means"]["ttft_ms.mean"] < high


def test_runs_that_no_seed_changes_are_one_run(study_file: Callable, simserve: Callable) -> None:
    trace = "workload: {trace: traces/chat.csv.gz, limit: 50}\nold:"
    path = study_file(
        "sweep: {over: {pools.0.tp: [1]}, replications: 3}\n",
        ("workload:\n  synthetic:", trace),
        ("old:\n    requests: 60\n    arrivals: {kind: poisson, rate_per_s: 8}\n", ""),
        ("    prompt_tokens: {kind: constant, value: 300}\n", ""),
        ("    output_tokens: {kind: constant, value: 20}\n", ""),
    )
    assert simserve("sweep", path, "--out", "out", "--workers", 1).exit_code == 0
    (point,) = json.loads(Path("out/study.json").read_text())["points"]
    assert point["replications"] == 1
    assert point["intervals"] == {}


def test_what_does_not_fit_is_impossible_and_says_why(study_file: Callable, simserve: Callable) -> None:
    path = study_file("sweep: {over: {model: [llama-3.1-8b, llama-3.1-70b]}}\n")
    assert simserve("sweep", path, "--out", "out", "--workers", 1).exit_code == 0
    by_model = {row["model"]: row for row in rows(Path("out"))}
    assert by_model["llama-3.1-8b"]["status"] == "done"
    assert by_model["llama-3.1-70b"]["status"] == "impossible"
    assert "does not fit" in by_model["llama-3.1-70b"]["reason"]


def test_draws_are_the_same_for_the_same_seed(study_file: Callable, simserve: Callable) -> None:
    over = "{engine.max_num_seqs: {from: 1, to: 64, log: true}, workload.rate_scale: {from: 0.5, to: 2}}"
    path = study_file(f"sweep: {{over: {over}, random: 5}}\n")
    for name in ("one", "two"):
        assert simserve("sweep", path, "--out", name, "--workers", 1).exit_code == 0
    assert rows(Path("one")) == rows(Path("two"))
    assert len({row["workload.rate_scale"] for row in rows(Path("one"))}) == 5
    assert all(1 <= row["engine.max_num_seqs"] <= 64 for row in rows(Path("one")))


def test_workers_change_no_byte(study_file: Callable, process: Callable) -> None:
    path = study_file(SWEEP)
    for name, workers in (("one", 1), ("two", 2)):
        run = process("sweep", path, "--out", name, "--workers", workers, "--no-cache")
        assert run.wait(120) == 0, run.stderr.read()
    for file in ("results.parquet", "study.json", "report.html"):
        assert Path("one", file).read_bytes() == Path("two", file).read_bytes()


def test_what_another_study_ran_is_found(study_file: Callable, simserve: Callable) -> None:
    path = study_file(SWEEP)
    assert simserve("sweep", path, "--out", "a/one", "--workers", 1).exit_code == 0
    before = {file: file.stat().st_mtime_ns for file in Path("a/.simserve-runs").rglob("*.json")}
    assert len(before) == 5
    assert simserve("sweep", path, "--out", "a/two", "--workers", 1).exit_code == 0
    assert {file: file.stat().st_mtime_ns for file in Path("a/.simserve-runs").rglob("*.json")} == before
    assert rows(Path("a/one")) == rows(Path("a/two"))


MANY = "sweep: {over: {engine.max_num_seqs: {from: 1, to: 24}}}\n"


def journal_keys(folder: Path) -> list[str]:
    lines = (folder / "journal.jsonl").read_bytes().split(b"\n")[:-1]
    return [json.loads(line)["key"] for line in lines[1:]]


def test_a_killed_sweep_goes_on_where_it_stopped(study_file: Callable, process: Callable) -> None:
    """Killed three times at whatever moment it is; no finished run is lost or repeated."""
    path = study_file(MANY)
    out = Path("out")
    kept: list[str] = []
    for wanted in (2, 8, 15):
        run = process("sweep", path, "--out", out, "--workers", 2, "--no-cache")
        while run.poll() is None and len(kept) < wanted:
            time.sleep(0.02)
            kept = journal_keys(out) if (out / "journal.jsonl").exists() else []
        run.send_signal(signal.SIGKILL)
        run.wait()
        kept = journal_keys(out)
        with (out / "journal.jsonl").open("ab") as file:  # as if the kill had come in the middle of a line
            file.write(b'{"key": "half a li')
    run = process("sweep", path, "--out", out, "--workers", 2, "--no-cache")
    assert run.wait(120) == 0, run.stderr.read()
    keys = journal_keys(out)
    assert keys[: len(kept)] == kept
    assert len(keys) == len(set(keys)) == 24
    whole = process("sweep", path, "--out", "whole", "--workers", 1, "--no-cache")
    assert whole.wait(120) == 0
    assert Path("whole/results.parquet").read_bytes() == (out / "results.parquet").read_bytes()


def test_a_second_process_on_the_same_folder_is_refused(study_file: Callable, process: Callable) -> None:
    path = study_file("sweep: {over: {engine.max_num_seqs: {from: 1, to: 1000}}}\n")
    first = process("sweep", path, "--out", "out", "--workers", 1, "--no-cache")
    while not Path("out/journal.jsonl").exists():
        assert first.poll() is None
        time.sleep(0.02)
    second = process("sweep", path, "--out", "out", "--workers", 1)
    assert second.wait(60) == 2
    assert f"process {first.pid} is working on this study" in second.stderr.read()
    first.kill()
    first.wait()


def test_a_folder_of_another_study_is_left_alone(study_file: Callable, simserve: Callable) -> None:
    assert simserve("sweep", study_file(SWEEP), "--out", "out", "--workers", 1).exit_code == 0
    before = Path("out/journal.jsonl").read_bytes()
    other = study_file("sweep: {over: {pools.0.tp: [1]}}\n")
    done = simserve("sweep", other, "--out", "out", "--workers", 1)
    assert done.exit_code == 2
    assert "holds another study" in done.stderr
    assert Path("out/journal.jsonl").read_bytes() == before
    assert simserve("sweep", other, "--out", "out", "--force", "--workers", 1).exit_code == 0


def test_a_folder_with_foreign_files_is_left_alone(study_file: Callable, simserve: Callable) -> None:
    Path("out").mkdir()
    Path("out/thesis.tex").write_text("precious")
    done = simserve("sweep", study_file(SWEEP), "--out", "out", "--force")
    assert done.exit_code == 2
    assert "thesis.tex" in done.stderr


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("", "has no sweep"),
        ("sweep: {over: {}}", "an empty grid has no points"),
        ("sweep: {over: {pools.0.tp: []}}", "a list of at least 1"),
        ("sweep: {points: []}", "a list of at least 1"),
        ("sweep: {over: {pools.0.tpp: [1]}}", "did you mean 'tp'?"),
        ("sweep: {over: {pools.4.tp: [1]}}", "pools is a list with indices 0 to 0, found 4"),
        ("sweep: {over: {pools.0.tp: [two]}}", "a valid integer"),
        ("sweep: {over: {pools.0.tp: {from: 4, to: 2}}}", "holds nothing"),
        ("sweep: {over: {workload.rate_scale: {from: 0.5, to: 2.5}}}", "a grid needs `steps`"),
        ("sweep: {over: {workload.rate_scale: {from: 1, to: 4, steps: 9}}}", "for fractions write 1.0"),
        ("sweep: {over: {pools.0.tp: [1]}, points: [{pools.0.tp: 1}]}", "exactly one of over and points"),
        (
            "sweep: {over: {pools.0.tp: [1, 2]}, where: [{keep: pools.0.tp > 4, because: few}, "
            "{keep: pools.0.tp < 4, because: many}]}",
            "no point is left of 2: few",
        ),
        (
            "sweep: {over: {pools.0.tp: [1]}, where: [{keep: pools.0.tpx > 4, because: x}]}",
            "unknown path, no 'tpx'",
        ),
        ("sweep: {over: {pools.0.tp: [1]}, where: [{keep: 'open(1)', because: x}]}", "is not allowed"),
        ("sweep: {over: {pools.0.tp: [1]}, where: [{keep: 'tp >', because: x}]}", "is not a condition"),
        ("sweep: {over: {pools.0.gpu: [h1000]}}", "unknown GPU 'h1000'"),
        ("sweep: {over: {model: [llama-3.1-405b-x]}}", "llama-3.1-405b-x"),
    ],
)
def test_what_makes_no_sense_is_refused(
    study_file: Callable, simserve: Callable, block: str, message: str
) -> None:
    done = simserve("sweep", study_file(block + "\n"), "--out", "out", "--workers", 1)
    assert done.exit_code == 2, done.output
    assert message in done.stderr


@pytest.mark.parametrize(
    ("command", "more", "message"),
    [
        ("capacity", "", "has no capacity"),
        ("capacity", "capacity: {from: 4, to: 4}", "from must be below to"),
        ("capacity", "capacity: {from: 0, to: 4}", "greater than 0"),
        ("capacity", "capacity: {of: users, from: 1, to: 4}", "users need a pause"),
        ("size", "", "has no size"),
        ("size", "size: {catalogue: {}}", "at least 1"),
        ("size", "size: {catalogue: {h100_sxm: {price_per_gpu_hour: 0}}}", "greater than 0"),
        (
            "size",
            "size: {catalogue: {h100: {price_per_gpu_hour: 1}}}",
            "size.catalogue.h100: GPU 'h100' may be h100_nvl, h100_pcie or h100_sxm; say which",
        ),
        ("search", "", "has no search"),
        ("search", "search: {over: {pools.0.tp: [1]}}", "at least one column in minimise or maximise"),
        ("search", "search: {over: {pools.0.tp: [1]}, minimise: [ttft]}", "no column 'ttft'"),
    ],
)
def test_studies_without_a_question_are_refused(
    study_file: Callable, simserve: Callable, command: str, more: str, message: str
) -> None:
    done = simserve(command, study_file(more + "\n"), "--out", "out", "--workers", 1)
    assert done.exit_code == 2, done.output
    assert message in done.stderr


def test_the_page_of_a_study_is_made_again_from_its_results(study_file: Callable, simserve: Callable) -> None:
    path = study_file("sweep: {over: {engine.max_num_seqs: [4, 8]}}\n")
    assert simserve("sweep", path, "--out", "out", "--workers", 1).exit_code == 0
    page = Path("out/report.html").read_bytes()
    Path("out/report.html").unlink()
    done = simserve("report", "out")
    assert (done.exit_code, done.stdout) == (0, "out/report.html\n")
    assert Path("out/report.html").read_bytes() == page
    refused = simserve("report", "out", "--figures", "svg")
    assert refused.exit_code == 2
    assert "is a study" in refused.stderr
    Path("out/study.json").write_text('{"kind": "sweeps"}')
    refused = simserve("report", "out")
    assert refused.exit_code == 2
    assert "kind: found 'sweeps', allowed: sweep, search, capacity, size" in refused.stderr


def test_a_mistake_is_told_once_and_leaves_nothing_behind(study_file: Callable, simserve: Callable) -> None:
    block = "sweep: {over: {engine.max_num_seqz: [1, 2, 3], pools.0.replicas: [1, 2]}}\n"
    done = simserve("sweep", study_file(block), "--out", "out", "--workers", 1)
    assert done.exit_code == 2
    assert done.stderr.count("unknown key 'max_num_seqz'") == 1
    assert "no point of the sweep can be run, 6 were tried" in done.stderr
    mended = study_file("sweep: {over: {engine.max_num_seqs: [8]}}\n")
    done = simserve("sweep", mended, "--out", "out", "--workers", 1)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("command", ["capacity", "size"])
def test_a_question_about_no_slo_is_refused(study_file: Callable, simserve: Callable, command: str) -> None:
    more = "capacity: {from: 1, to: 4}\nsize: {catalogue: {h100_sxm: {price_per_gpu_hour: 1}}}\n"
    path = study_file(more, ("slo: {ttft_ms: 500, tpot_ms: 25, attainment: 0.9}\n", ""))
    done = simserve(command, path, "--out", "out", "--workers", 1)
    assert done.exit_code == 2
    assert "slo" in done.stderr


def test_an_slo_that_nobody_can_meet_says_so_and_by_how_much(
    study_file: Callable, simserve: Callable
) -> None:
    more = "capacity: {from: 1, to: 4, replications: 1, curve: 0}\n"
    path = study_file(more, ("ttft_ms: 500", "ttft_ms: 1"))
    done = simserve("capacity", path, "--out", "out", "--workers", 1)
    assert done.exit_code == 3
    assert "Not even 1 requests/s are shown to be carried" in done.stderr
    assert "TTFT ≤ 1 ms" in done.stderr
    assert "0\u00a0%" in done.stderr


def test_size_does_not_count_ffn_gpus_as_free(study_file: Callable, simserve: Callable) -> None:
    more = "size: {catalogue: {h100_sxm: {price_per_gpu_hour: 1}}}\n"
    path = study_file(more, ("gpu: h100_sxm, price", "gpu: h100_sxm, afd: {ffn_gpus: 2}, price"))
    done = simserve("size", path, "--out", "out", "--workers", 1)
    assert done.exit_code == 2, done.output
    assert "size does not plan FFN GPUs" in " ".join(done.stderr.split())


def test_more_users_than_requests_are_said(study_file: Callable, simserve: Callable) -> None:
    """Those beyond the number of requests never ask, so carrying them shows nothing."""
    loop = "  closed_loop: {users: 4, think_s: {kind: exponential, mean: 30}}"
    for most, said in ((4, False), (5000, True)):
        more = f"capacity: {{of: users, from: 2, to: {most}, replications: 1, curve: 0}}\n"
        path = study_file(more, ("workload:\n", f"workload:\n{loop}\n"), ("ttft_ms: 500", "ttft_ms: 600000"))
        done = simserve("capacity", path, "--out", f"out{most}", "--workers", 1)
        assert done.exit_code == 0, done.output
        assert ("some never asked" in read_notes(f"out{most}")) == said


def read_notes(folder: str) -> str:
    return " ".join(json.loads((Path(folder) / "study.json").read_text())["notes"])


def test_a_run_of_the_scenario_ignores_its_studies(study_file: Callable, simserve: Callable) -> None:
    path = study_file(SWEEP)
    assert simserve("run", path, "--out", "with").exit_code == 0
    assert "sweep" not in Path("with/scenario.resolved.yaml").read_text()
    assert simserve("run", study_file(), "--out", "without").exit_code == 0
    assert Path("with/summary.json").read_bytes() == Path("without/summary.json").read_bytes()


def test_a_run_that_must_keep_its_slo_keeps_its_percentiles_too(
    study_file: Callable, simserve: Callable
) -> None:
    path = study_file(
        "", ("attainment: 0.9}", "attainment: 0.9, percentiles: {ttft_ms: {p50: 0.5, p99: 400}}}")
    )
    done = simserve("run", path, "--out", "out", "--fail-on-slo")
    assert done.exit_code == 3
    missed = done.stderr.partition("warning:")[2].partition("\n")[2]
    assert "missed: p50 of TTFT is" in missed
    assert "target: 0.5 ms" in missed
    assert "p99 of TTFT" not in missed.partition(";")[0]
