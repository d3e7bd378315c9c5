"""A small scenario file to change, without any file beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = """\
name: small
model: llama-3.1-8b
engine: vllm-0.33
workload:
  synthetic:
    requests: 40
    arrivals: {kind: poisson, rate_per_s: 8}
    prompt_tokens: {kind: constant, value: 300}
    output_tokens: {kind: constant, value: 20}
pools:
  - name: all
    gpu: h100_sxm
slo: {ttft_ms: 500, tpot_ms: 25}
seed: 3
"""


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
