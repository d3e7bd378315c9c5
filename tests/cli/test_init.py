"""`simserve init` writes a file that `simserve run` takes as it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simserve.cli import app

Call = Callable[..., Any]
GENERATED = (
    *("init", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--rate", "4"),
    *("--prompt-tokens", "300", "--output-tokens", "20", "--requests", "30"),
)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def summary_of(simserve: Call, file: str) -> dict[str, Any]:
    done = simserve("run", file, "--json", "--out", "result")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_the_written_file_runs_and_holds_what_was_asked(simserve: Call) -> None:
    done = simserve(*GENERATED, "--slo-ttft-ms", "500", "--slo-tpot-ms", "25")
    assert done.exit_code == 0, done.stderr
    assert "simserve run scenario.yaml" in done.stdout
    found = summary_of(simserve, "scenario.yaml")
    assert found["whole"]["completed"] == 30
    resolved = Path("result/scenario.resolved.yaml").read_text(encoding="utf-8")
    for line in ("gpu: h100_sxm", "rate_per_s: 4.0", "ttft_ms: 500", "tpot_ms: 25"):
        assert line in resolved


def test_a_trace_is_found_from_the_folder_of_the_scenario(simserve: Call) -> None:
    Path("my traces").mkdir()
    rows = "".join(f"{i},100,10\n" for i in range(7))
    Path("my traces/no.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}", encoding="utf-8")
    Path("sub").mkdir()
    asked = ("init", "--model", "llama-3.1-8b", "--gpu", "h100_sxm", "--trace", "my traces/no.csv")
    done = simserve(*asked, "--out", "sub/yes.yaml")
    assert done.exit_code == 0, done.stderr
    assert '"../my traces/no.csv"' in Path("sub/yes.yaml").read_text(encoding="utf-8")
    assert summary_of(simserve, "sub/yes.yaml")["whole"]["completed"] == 7


def test_a_file_is_replaced_only_when_asked(simserve: Call) -> None:
    Path("scenario.yaml").write_text("mine\n", encoding="utf-8")
    done = simserve(*GENERATED)
    assert done.exit_code == 2
    assert "--force" in done.stderr
    assert Path("scenario.yaml").read_text(encoding="utf-8") == "mine\n"
    assert simserve(*GENERATED, "--force").exit_code == 0
    assert "llama-3.1-8b" in Path("scenario.yaml").read_text(encoding="utf-8")


def test_what_is_missing_is_named_all_at_once(simserve: Call) -> None:
    done = simserve("init", "--gpu", "h100_sxm", "--output-tokens", "5")
    assert done.exit_code == 2
    assert "--model, --rate, --prompt-tokens" in done.stderr
    both = simserve("init", "--trace", "traces/chat.csv.gz", "--rate", "3")
    assert both.exit_code == 2
    assert "leave out --rate" in both.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [(("--model", "llama-3.1-8x"), "llama-3.1-8b"), (("--model", "llama-3.1-70b"), "tp 2")],
)
def test_nothing_is_written_that_could_not_run(change: tuple[str, str], said: str, simserve: Call) -> None:
    done = simserve(*GENERATED, *change)
    assert done.exit_code == 2
    assert said in done.stderr
    assert ".partial" not in done.stderr
    assert list(Path().iterdir()) == []


def test_a_terminal_is_asked(simserve: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = "\n\nsglang-0.5.23\n2\n\n\n3\n200\n10\n800\n0\n"
    with CliRunner().isolation(answers):
        terminal = type(sys.stdin)
    monkeypatch.setattr(terminal, "isatty", lambda self: True, raising=False)
    done = CliRunner().invoke(app, ["init", "--requests", "20"], input=answers)
    assert done.exit_code == 0, done.output
    text = Path("scenario.yaml").read_text(encoding="utf-8")
    for part in ("engine: sglang-0.5.23", "replicas: 2, tp: 1", "rate_per_s: 3.0", "slo: {ttft_ms: 800}"):
        assert part in text
    assert summary_of(simserve, "scenario.yaml")["whole"]["completed"] == 20
