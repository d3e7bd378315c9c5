"""The conformance page says what the command prints, and lists every committed log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.validation import golden_sglang, golden_vllm
from simserve.validation.golden import GoldenLog

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "fidelity.md").read_text(encoding="utf-8")
LOGS = sorted((REPOSITORY / "tests" / "conformance").glob("*/*.jsonl.gz"))


def test_the_command_prints_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    (block,) = re.findall(r"```\n\$ simserve (validate golden [^\n]+)\n(.*?)```", PAGE, re.DOTALL)
    done = CliRunner().invoke(app, block[0].split())
    assert done.exit_code == 0
    assert done.stdout == block[1]


def test_every_committed_log_is_in_the_tables() -> None:
    versions: list[str] = []
    marked = set()
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            versions = []
        if head := re.match(r"(vLLM|SGLang) workload$", cells[0]):
            versions = [f"{head[1].lower()}-{version}" for version in cells[1:]]
        elif versions and line.startswith("|") and "/" in line:
            marked |= {(v, cells[0], c) for v, c in zip(versions, cells[1:], strict=True) if c.endswith("*")}
    expected = set()
    for path in LOGS:
        steps = len(GoldenLog.read(path).steps)
        expected.add((path.parent.name, path.name.partition(".")[0], f"{steps} / {steps}*"))
    assert marked == expected


def test_the_compared_fields_are_named() -> None:
    for fields, engine in ((golden_vllm.STEP_FIELDS, "vLLM"), (golden_sglang.STEP_FIELDS, "SGLang")):
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {engine} | `")]
        assert set(re.findall(r"`(\w+)`", row)) == set(fields)
