"""Searches by optuna: resuming, several processes on one PostgreSQL, and volumes worked out by hand."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simserve.study.search import hypervolume, unbeaten_rows

SEARCH = """
search:
  over:
    engine.max_num_seqs: {from: 1, to: 64, log: true}
    pools.0.tp: [1, 2]
  minimise: [ttft_ms.p99, cost_per_million_output_tokens]
  trials: 12
"""


def study(folder: str) -> dict[str, Any]:
    return json.loads(Path(folder, "study.json").read_text())


@pytest.mark.parametrize(
    ("front", "volume"),
    [
        ([], 0.0),
        ([(0.25,)], 0.75),
        ([(0.0, 0.0)], 1.0),
        ([(0.5, 0.5)], 0.25),
        ([(0.25, 0.5), (0.5, 0.25)], 0.375 + 0.125),
        ([(0.5, 0.5, 0.5), (0.0, 0.75, 0.75)], 0.125 + 0.0625 - 0.5 * 0.25 * 0.25),
        ([(0.5, 1.0)], 0.0),
    ],
)
def test_the_volume_is_that_of_the_boxes(front: list[tuple[float, ...]], volume: float) -> None:
    assert hypervolume(front) == pytest.approx(volume)


def test_the_front_is_what_nobody_beats() -> None:
    assert unbeaten_rows({0: (1, 3), 1: (2, 2), 2: (2, 3), 3: (3, 1), 4: (1, 3)}) == [0, 1, 3]


def test_a_search_finds_the_front_of_the_space(study_file: Callable, simserve: Callable) -> None:
    done = simserve("search", study_file(SEARCH), "--out", "out", "--workers", 1)
    assert done.exit_code == 0, done.output
    found = study("out")
    assert len(found["points"]) == 12
    points = {p["point"]: p for p in found["points"]}
    for index in found["front"]:
        mine = [points[index]["means"][aim] for aim in found["aims"]["minimise"]]
        for other in points.values():
            theirs = [other["means"][aim] for aim in found["aims"]["minimise"]]
            assert (
                other["slo"] != "met"
                or theirs == mine
                or not all(t <= m for t, m in zip(theirs, mine, strict=True))
            )
    volumes = found["hypervolume"]
    assert volumes == sorted(volumes)
    assert 0 < volumes[-1] <= 1


def test_a_killed_search_goes_on(study_file: Callable, process: Callable) -> None:
    path = study_file(SEARCH.replace("trials: 12", "trials: 20"))
    run = process("search", path, "--out", "out", "--workers", 1, "--no-cache")
    journal = Path("out/journal.jsonl")
    while run.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 6):
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.wait()
    kept = journal.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    run = process("search", path, "--out", "out", "--workers", 1, "--no-cache")
    assert run.wait(120) == 0, run.stderr.read()
    assert journal.read_bytes().startswith(kept)
    keys = [json.loads(line).get("key") for line in journal.read_bytes().splitlines()]
    assert len(keys) == len(set(keys))
    assert len(study("out")["points"]) >= 20


def test_a_missing_optuna_says_what_to_install(
    study_file: Callable, simserve: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    done = simserve("search", study_file(SEARCH), "--out", "out", "--workers", 1)
    assert done.exit_code == 2
    assert "pip install -e '.[search]'" in done.stderr


def test_a_database_that_cannot_be_reached_is_named_without_its_password(
    study_file: Callable, simserve: Callable
) -> None:
    url = "postgresql+psycopg://me:secret@127.0.0.1:9/none?connect_timeout=2"
    done = simserve("search", study_file(SEARCH), "--out", "out", "--workers", 1, "--storage", url)
    assert done.exit_code == 2, done.output
    assert "--storage postgresql+psycopg://me@127.0.0.1:9/none" in done.stderr
    assert "secret" not in done.stderr


def _tool(name: str) -> str:
    found = shutil.which(name) or next(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), "")
    if not found:
        pytest.skip(f"PostgreSQL's {name} is not installed: apt-get install postgresql")
    return found


@pytest.fixture
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server on the loopback interface, for this test alone; the URL of its database."""
    initdb, server = _tool("initdb"), _tool("postgres")
    user: dict[str, Any] = {}
    folder = tmp_path_factory.mktemp("postgres")
    if os.geteuid() == 0:  # the server refuses to run as root
        try:
            account = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is no user called postgres")
        user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        os.chown(folder, account.pw_uid, account.pw_gid)
        for parent in [folder, *folder.parents][:4]:
            if parent.stat().st_uid in (0, account.pw_uid) and parent != Path(tempfile.gettempdir()):
                parent.chmod(parent.stat().st_mode | 0o055)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"
    setup = [initdb, "-D", data, "-U", "me", "--auth=trust", "--no-sync"]
    subprocess.run(setup, check=True, capture_output=True, cwd=folder, **user)
    options = ["-c", "listen_addresses=127.0.0.1", "-c", f"port={port}", "-k", str(folder), "-c", "fsync=off"]
    running = subprocess.Popen(
        [server, "-D", data, *options],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        **user,
    )
    try:
        _await(port)
        yield f"postgresql+psycopg://me@127.0.0.1:{port}/postgres"
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(20)


def _await(port: int) -> None:
    import psycopg

    for _ in range(200):
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="me", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.05)
    pytest.fail("PostgreSQL did not start")


def test_two_processes_search_together_through_postgresql(
    study_file: Callable, process: Callable, postgres: str
) -> None:
    pytest.importorskip("optuna")
    path = study_file(SEARCH.replace("trials: 12", "trials: 16"))
    runs = [
        process("search", path, "--out", name, "--workers", 1, "--no-cache", "--storage", postgres)
        for name in ("one", "two")
    ]
    for run in runs:
        assert run.wait(200) == 0, run.stderr.read()
    keys = {
        name: {json.loads(line).get("key") for line in Path(name, "journal.jsonl").read_text().splitlines()}
        for name in ("one", "two")
    }
    assert len(keys["one"]) > 1
    assert len(keys["two"]) > 1
    most = max(len(study(name)["points"]) for name in ("one", "two"))
    assert 16 <= most <= 16 + 4  # each may have asked for a few when the other finished
