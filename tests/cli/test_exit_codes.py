"""Exit codes: 0 done, 1 ours is broken, 2 the input is wrong, 3 done but there is something to know."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


def one_line(stderr: str) -> str:
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    return lines[0]


def test_nothing_completed_is_3(small: Path, simserve: Call) -> None:
    done = simserve("run", small, "--set", "pools.0.max_model_len=200")  # every prompt has 300 tokens
    assert done.exit_code == 3
    line = one_line(done.stderr)
    assert "nothing completed: 40 requests" in line
    assert Path("reports/small-run-1-gpu/report.html").is_file()


def test_an_overloaded_system_is_3(small: Path, simserve: Call) -> None:
    overload = ["--set", "workload.synthetic.arrivals.rate_per_s=200", "--set", "engine.max_num_seqs=2"]
    done = simserve("run", small, *overload, "--set", "workload.synthetic.requests=400")
    assert done.exit_code == 3
    assert "unstable" in one_line(done.stderr)


def test_a_missed_slo_is_3_only_when_asked(small: Path, simserve: Call) -> None:
    strict = ["--set", "slo.ttft_ms=0.5", "--force"]
    assert simserve("run", small, *strict).exit_code == 0
    done = simserve("run", small, *strict, "--fail-on-slo")
    assert done.exit_code == 3
    warning, missed = done.stderr.splitlines()
    assert missed.startswith("SLO missed: 0 % of requests within TTFT ≤ 0.5 ms")
    assert warning.startswith("warning: slo.ttft_ms 0.5 is below")
    assert simserve("run", small, "--set", "slo.attainment=0.8", "--fail-on-slo", "--force").exit_code == 0


def test_an_slo_that_so_few_requests_cannot_show_is_3(small: Path, simserve: Call) -> None:
    """32 steady requests, all good: 0.025 ** (1 / 32) = 89.1 % are shown."""
    done = simserve("run", small, "--set", "slo.attainment=0.9", "--fail-on-slo")
    assert done.exit_code == 3
    assert "SLO inconclusive: 100 % of requests" in one_line(done.stderr)
    assert "(target: 90 %, 89.1 % to 100 % are possible)" in done.stderr


def test_fail_on_slo_without_a_slo_is_2(small: Path, simserve: Call) -> None:
    done = simserve("run", small, "--fail-on-slo", "--set", "slo=null")
    assert done.exit_code == 2
    assert "slo" in one_line(done.stderr)
    assert not Path("reports").exists()


BROKEN_POLICY = """
from simserve.engines.base import PolicyParams, Scheduler

class Broken(Scheduler):
    Params = PolicyParams
    running = waiting = kv_used_blocks = 0

    def __init__(self, params, **settings):
        pass

    def add(self, request):
        raise RuntimeError("a bug of ours")

    next_batch = update = add
"""


@pytest.mark.parametrize("debug", [False, True])
def test_our_own_fault_is_1(small: Path, process: Call, debug: bool) -> None:
    (small.parent / "broken.py").write_text(BROKEN_POLICY)
    args = [*(["--debug"] if debug else []), "run", small.name, "--set", "engine={policy: 'broken:Broken'}"]
    run = process(*args)
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "a bug of ours" in stderr
    assert ("Traceback" in stderr) is debug
    if not debug:
        assert "RuntimeError" in one_line(stderr)
    assert not (small.parent / "reports").exists()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_stopped_run_says_so_and_leaves_nothing(
    small: Path, process: Call, number: int, code: int, word: str
) -> None:
    long = ["--set", "workload.synthetic.requests=1000000", "--set", "fast_forward=false"]
    run = process("run", small.name, *long)
    while run.poll() is None and cpu_seconds(run.pid) < 3:  # start-up takes one, however busy the machine
        time.sleep(0.1)
    assert run.poll() is None
    run.send_signal(number)
    stdout, stderr = run.communicate(timeout=30)
    assert run.returncode == code
    assert one_line(stderr) == word
    assert stdout == ""
    assert [path.name for path in small.parent.iterdir()] == ["small.yaml"]


def test_a_stopped_study_says_how_to_resume(small: Path, process: Call, simserve: Call) -> None:
    rates = ", ".join(f"{rate}" for rate in range(1, 41))
    sweep = f"sweep: {{over: {{workload.synthetic.arrivals.rate_per_s: [{rates}]}}}}\n"
    small.write_text(small.read_text(encoding="utf-8") + sweep, encoding="utf-8")
    journal = small.parent / "out" / "journal.jsonl"
    command = (
        "sweep",
        small.name,
        "--out",
        "out",
        "--set",
        "workload.synthetic.requests=3000",
        "--workers",
        "1",
    )
    run = process(*command)
    while run.poll() is None and not (journal.is_file() and len(journal.read_bytes().splitlines()) > 2):
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    _, stderr = run.communicate(timeout=30)
    assert run.returncode == 143
    said = re.fullmatch(
        r"terminated: (\d+) runs? (?:is|are) done and kept; repeat the command to resume",
        stderr.splitlines()[-1],
    )
    assert said
    kept = len(journal.read_bytes().splitlines()) - 1  # its first line is a head
    assert int(said[1]) in (kept - 1, kept)  # the stop may come between a line and the count of it


def test_a_process_of_its_own_runs_without_a_terminal(small: Path, process: Call) -> None:
    run = process("run", small.name)
    stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == 0
    assert "40 of 40 requests completed" in stdout
    assert stderr == ""  # no progress bar where nobody looks


@pytest.mark.parametrize(("limit", "code", "word"), [(0.5, 3, "missed"), (60_000, 0, "met")])
def test_percentiles_alone_are_a_slo(small: Path, simserve: Call, limit: float, code: int, word: str) -> None:
    done = simserve(
        "run", small, "--fail-on-slo", "--set", f"slo={{percentiles: {{ttft_ms: {{p80: {limit}}}}}}}"
    )
    assert done.exit_code == code, done.output
    assert f"SLO {word}: p80 of TTFT is" in done.stdout


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_line_of_the_slo_shows_what_is_judged_in_80_columns(
    small: Path, simserve: Call, seeds: int
) -> None:
    """All seeds together; the share of gaps where these have a limit."""
    slo = "slo={ttft_ms: 16, tpot_ms: 40, itl_ms: 12, e2e_ms: 5000, attainment: 0.95}"
    done = simserve("run", small, "--set", slo, "--set", f"replications={seeds}", "--out", "out")
    found = json.loads(Path("out/summary.json").read_text())
    text = " ".join(done.stdout.split())
    judged = found["slo_verdict"]
    assert f"SLO {judged['outcome']}: {judged['text']}. Judged by {judged['basis']}" in text
    shares, gaps = judged["checks"]
    assert shares["asked"] == "95 % with TTFT ≤ 16 ms and TPOT ≤ 40 ms and E2E ≤ 5 s"
    assert gaps["asked"] == "95 % with ITL ≤ 12 ms"
    own = found["replications"]["measures"]["steady.slo.attainment"]["mean"] if seeds > 1 else None
    assert shares["kept"] == pytest.approx(own or found["steady"]["slo"]["attainment"])
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("SLO "))
    assert all(len(line) <= 80 for line in lines[start : start + 3])
