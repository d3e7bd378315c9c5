"""A small scenario file to change, without any file beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import tiny

SMALL = tiny(pool="name: all\n    gpu: h100_sxm")


@pytest.fixture
def scenario_file(tmp_path: Path) -> Callable[..., Path]:
    """Write the small scenario with replacements (old, new) and return its path."""

    def write(*replacements: tuple[str, str], text: str = SMALL) -> Path:
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "small.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
