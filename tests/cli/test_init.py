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


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, answers: str) -> Any:
    with CliRunner().isolation(answers):
        terminal = type(sys.stdin)
    monkeypatch.setattr(terminal, "isatty", lambda self: True, raising=False)
    return CliRunner().invoke(app, ["init", "--requests", "20"], input=answers)


def test_a_terminal_is_asked(simserve: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    done = on_a_terminal(monkeypatch, "\n\nsglang-0.5.23\n2\n\n\n3\n200\n10\n800\n0\n")
    assert done.exit_code == 0, done.output
    text = Path("scenario.yaml").read_text(encoding="utf-8")
    for part in ("engine: sglang-0.5.23", "replicas: 2, tp: 1", "rate_per_s: 3}", "slo: {ttft_ms: 800}"):
        assert part in text
    assert summary_of(simserve, "scenario.yaml")["whole"]["completed"] == 20


def test_a_wrong_answer_is_explained_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, engine = "llama-3.1-8x\nllama-3.1-8b\n", "vllm-9\nvllm-0.19\n"
    counts, trace, loads = "0\nmany\n2\n\n", "none.csv\n\n", "0\n-3\n4\n2.5\n300\n20\n"
    done = on_a_terminal(monkeypatch, model + "GTX\nH100-SXM\n" + engine + counts + trace + loads + "0\n0\n")
    assert done.exit_code == 0, done.output
    errors = [line for line in done.output.splitlines() if line.startswith("Error")]
    for word in (
        "did you mean 'llama-3.1-8b'",
        "'GTX'",
        "vllm-9",
        "'0': give a whole number",
        "'many'",
        "none.csv: no such file",
        "'0': give a number above 0",
        "'-3'",
        "'2.5': give a whole number",
    ):
        assert any(word in line for line in errors), word
    assert len(errors) == 9
    text = Path("scenario.yaml").read_text(encoding="utf-8")
    for part in ("model: llama-3.1-8b", "gpu: H100-SXM, replicas: 2, tp: 1", "engine: vllm-0.19"):
        assert part in text


QWEN = ("--model", "Qwen/Qwen3-32B-FP8", "--gpu", "H100-SXM", "--replicas", "4", "--rate", "6")
DEEPSEEK = (
    "--model",
    "deepseek-ai/DeepSeek-V3",
    "--gpu",
    "H200",
    "--tp",
    "8",
    "--engine",
    "sglang",
    "--rate",
    "2",
)
FEW = ("--prompt-tokens", "500", "--output-tokens", "20", "--requests", "30", "--out", "mine.yaml")
QUESTIONS = ("Which of my GPUs?", "Prefill and decode apart, or not?", "Which chunk size?")


def uncommented(text: str, question: str) -> str:
    """Return the scenario after one edit: `compare:` and the block of a question are no comments any more."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("#   # "):
            inside = line == f"#   # {question}"
        elif line == "# compare:" or inside:
            line = line.removeprefix("# ")
        lines.append(line)
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("asked", [QWEN, DEEPSEEK], ids=["qwen3-32b-fp8 on 4 h100", "deepseek-v3 on 8 h200"])
def test_a_question_is_one_edit_away(asked: tuple[str, ...], question: str, simserve: Call) -> None:
    assert simserve("init", *asked, *FEW).exit_code == 0
    file = Path("mine.yaml")
    file.write_text(uncommented(file.read_text(encoding="utf-8"), question), encoding="utf-8")
    done = simserve("run", "mine.yaml", "--out", "result")
    assert done.exit_code in (0, 3), done.output
    changes = json.loads(Path("result/compare.json").read_text())["changes"]
    gpus = {name: one["pools"] for name, one in manifests(changes).items()}
    if question == QUESTIONS[0]:
        assert {pool["gpu"] for pools in gpus.values() for pool in pools} == {
            "h200_sxm" if asked is QWEN else "b200_sxm"
        }
    elif question == QUESTIONS[1]:
        sizes = {name: sum(pool["replicas"] * pool["tp"] for pool in pools) for name, pools in gpus.items()}
        # DeepSeek-V3 in fp8 is 671 GB: four H200 of 141 GB do not hold it, so each side needs all eight.
        assert sizes == ({"split": 4} if asked is QWEN else {"split_16_gpus": 16, "whole_16_gpus": 16})
    else:
        option = "max_num_batched_tokens" if asked is QWEN else "chunked_prefill_size"
        chunks = {pool["engine_options"][option] for pools in gpus.values() for pool in pools}
        assert chunks == {2048, 16384}


def manifests(names: dict[str, Any]) -> dict[str, Any]:
    return {name: json.loads(Path(f"result/variants/{name}/manifest.json").read_text()) for name in names}


def test_own_requests_are_one_edit_away(simserve: Call) -> None:
    """The block `workload:` names a file with columns as they come: ISO times, somebody's names."""
    assert simserve("init", *QWEN, *FEW).exit_code == 0
    rows = "".join(f"2026-03-01T00:00:{i:02d}Z,{100 + i},10\n" for i in range(9))
    Path("own.csv").write_text(f"timestamp,prompt_tokens,completion_tokens\n{rows}", encoding="utf-8")
    file = Path("mine.yaml")
    head, _, rest = file.read_text(encoding="utf-8").partition("  synthetic:")
    file.write_text(f"{head}  trace: own.csv\n\npools:{rest.partition('pools:')[2]}", encoding="utf-8")
    found = summary_of(simserve, "mine.yaml")
    assert found["whole"]["completed"] == 9


def test_the_file_and_what_is_said_are_in_the_readers_own_names(simserve: Call) -> None:
    done = simserve("init", *QWEN, *FEW)
    head, *commands = done.stdout.splitlines()
    assert head == "Wrote mine.yaml: Qwen/Qwen3-32B-FP8 on 4 x H100-SXM. Next:"
    assert all("mine.yaml" in line or "Qwen/Qwen3-32B-FP8 --gpu H100-SXM" in line for line in commands)
