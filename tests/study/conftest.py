"""Small scenarios with studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import tiny

SMALL = tiny(
    "small study",
    requests=60,
    pool="{name: all, gpu: h100_sxm, price_per_gpu_hour: 2}",
    slo="{ttft_ms: 500, tpot_ms: 25, attainment: 0.9}",
)


@pytest.fixture
def study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write the small scenario with some more text; its folder becomes the current one."""
    monkeypatch.chdir(tmp_path)

    def write(more: str = "", *replacements: tuple[str, str]) -> Path:
        text = SMALL + more
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "study.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
