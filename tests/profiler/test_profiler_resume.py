"""Killed at any moment, no row is lost or doubled: a real process, really killed, again and again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simserve.errors import ProfileError
from simserve.latency.tables.profiles import read_profile
from simserve.profiler.journal import Journal, read_journal
from simserve.profiler.ops import OPS

ROOT = Path(__file__).parents[2]


def command(out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "simserve", "profile", "run", "--gpu-name", "cpu", "--models", "tiny",
        "--ops", "host_copy,launch", "--threads", "1", "--out", str(out), "--budget", "60s", *more,
    ]  # fmt: skip


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command(out, *more), env=environment, text=True, **pipes)


def whole_lines(journal: Path) -> list[str]:
    """Lines of cases that were complete when looked at."""
    content = journal.read_text() if journal.is_file() else ""
    lines = content.split("\n")[:-1]
    return [line for line in lines if '"case"' in line]


def test_killed_again_and_again_then_finished(tmp_path: Path) -> None:
    journal = tmp_path / "cpu" / "journal.jsonl"
    seen: list[str] = []
    for attempt in range(2):
        process = start(tmp_path, "--resume")
        wanted = len(seen) + 2 + attempt
        deadline = time.monotonic() + 90
        while len(whole_lines(journal)) < wanted and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.003)
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = whole_lines(journal)
        assert now[: len(seen)] == seen, "a row was lost or changed"
        assert len(now) > len(seen)
        seen = now
    with journal.open("a") as file:
        file.write('{"case":"torn off in the mid')
    process = start(tmp_path, "--resume")
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert out.strip() == str(tmp_path / "cpu")
    done = whole_lines(journal)
    assert done[: len(seen)] == seen
    rows = [json.loads(line) for line in done]
    assert len({row["case"] for row in rows}) == len(rows), "a row was doubled"
    planned = subprocess.run(
        [*command(tmp_path), "--dry-run"], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert len(rows) == len(planned)
    for op in ("host_copy", "launch"):
        table = read_profile(tmp_path / "cpu" / f"{op}.parquet")
        kept = sorted(float(row["latency_us"]) for row in rows if row["op"] == op)
        assert sorted(table.numbers("latency_us")) == pytest.approx(kept, rel=1e-6)
        assert len(table.about["sessions"]) == 3
        assert tuple(table.about["key_columns"]) == OPS[op].key_columns, (
            "another order than of a run in one go"
        )


def test_interrupted_by_the_user_it_says_how_to_go_on(tmp_path: Path) -> None:
    process = start(tmp_path)
    journal = tmp_path / "cpu" / "journal.jsonl"
    deadline = time.monotonic() + 90
    while not whole_lines(journal) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.003)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"{tmp_path / 'cpu'} holds what was measured; go on with --resume\n" in err
    assert "Traceback" not in err
    kept = sum(len(read_profile(path)) for path in (tmp_path / "cpu").glob("*.parquet"))
    assert kept == len(whole_lines(journal))


def test_a_torn_line_is_cut_and_a_damaged_one_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"session":{}}\n{"case":"a","status":"ok"}\n{"case":"b","sta')
    with Journal(path) as journal:
        assert journal.done == {"a"}
        journal.add({"case": "b", "status": "ok"})
    assert [line.get("case") for line in read_journal(path)[0]] == [None, "a", "b"]
    path.write_text('{"case":"a"}\n{"cas\n{"case":"c"}\n')
    with pytest.raises(ProfileError, match=r"journal\.jsonl line 2: not JSON"):
        read_journal(path)


def test_two_runs_cannot_write_into_one_folder(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl"), pytest.raises(ProfileError, match="another run is writing"):
        Journal(tmp_path / "journal.jsonl")
