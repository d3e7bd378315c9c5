"""The package imports where Unix's own modules are absent, and its locks hold there too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from simserve.errors import ScenarioError
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
