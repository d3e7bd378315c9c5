"""What the shell completes, as bash asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def completed(words: str, folder: Path) -> list[str]:
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_SIMSERVE_COMPLETE": "complete_bash",
    }
    code = "from simserve.cli import app; app(prog_name='simserve')"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("simserve models show qwen3-32b", "qwen3-32b"),
        ("simserve init --gpu h200", "h200_sxm"),
        ("simserve init --engine sgl", "sglang-0.5.23"),
        ("simserve run scenarios/de", "scenarios/demo.yaml"),
        ("simserve size mi", "mine.yaml"),
    ],
)
def test_names_and_scenario_files_are_completed(words: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "mine.csv").touch()
    names = completed(words, tmp_path)
    assert found in names
    assert all(name.startswith(words.split()[-1]) for name in names)
    assert "mine.csv" not in names
