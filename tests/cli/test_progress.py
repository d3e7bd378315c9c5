"""The progress line: on a terminal only, on stderr only, gone at the end."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simserve.cli.terminal import clock, shown_progress


def test_a_terminal_sees_simulated_time_requests_and_rate(small: Path) -> None:
    ours, theirs = pty.openpty()
    many = [
        "--set",
        "workload.synthetic.requests=20000",
        "--set",
        "workload.synthetic.arrivals.rate_per_s=30",
    ]
    run = subprocess.Popen(
        [sys.executable, "-m", "simserve", "run", small.name, "--json", *many],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not piece:
            break
        seen += piece
    assert run.wait(timeout=60) == 0
    assert run.stdout is not None
    assert run.stdout.read().startswith("{")
    text = seen.decode()
    assert re.search(r"simulated \d:\d\d:\d\d, [\d,]+ of 20,000 requests", text)
    assert "requests, " in text  # and a rate


def test_quiet_or_no_terminal_means_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    with shown_progress(quiet=False) as progress:
        assert progress is None  # pytest's stderr is no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with shown_progress(quiet=True) as progress:
        assert progress is None


@pytest.mark.parametrize(
    ("ns", "text"), [(0, "0:00:00"), (61 * 10**9, "0:01:01"), (90_000 * 10**9, "25:00:00")]
)
def test_clock(ns: int, text: str) -> None:
    assert clock(ns) == text
