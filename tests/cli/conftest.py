"""The command line on a small scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import tiny

SMALL = tiny("Small run, 1 GPU")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario file in an empty folder, which becomes the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path
