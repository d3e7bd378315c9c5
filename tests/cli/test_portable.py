"""The package imports where Unix's own modules are absent, and its locks hold there too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simserve.errors import ScenarioError
from simserve.study.executors.local import workers_borne
from simserve.study.journal import locked

IMPORT_ALL = """
import importlib, pkgutil, sys
for name in ("fcntl", "pwd", "grp", "termios", "resource"):
    sys.modules[name] = None
import simserve
for module in pkgutil.walk_packages(simserve.__path__, "simserve."):
    if module.name.rpartition(".")[2] == "__main__":
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        missing = error.name or ""
        if missing.startswith("simserve") or "fcntl" in str(error) or "None in sys.modules" in str(error):
            raise
"""


def test_every_module_imports_without_those_of_unix() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_lock_is_held_by_one_and_freed_for_the_next(tmp_path: Path) -> None:
    held = pytest.raises(ScenarioError, match="is working on this study")
    with locked(tmp_path / "study"), held, locked(tmp_path / "study"):
        pass
    with locked(tmp_path / "study"):
        pass


def test_workers_are_counted_where_nothing_says_which_cores_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, which knows no affinity, and on Windows, which knows no sysconf either."""
    cores = os.cpu_count() or 1
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert 1 <= workers_borne() <= cores
    monkeypatch.delattr(os, "sysconf", raising=False)
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_options: "")
    assert workers_borne() == cores
