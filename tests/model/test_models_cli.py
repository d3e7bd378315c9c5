"""`simserve models`: what a person and a machine read."""

import json

import pytest
from typer.testing import CliRunner

from simserve.cli.models import app

RUN = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_table_fits_eighty_columns_and_cuts_nothing() -> None:
    out = RUN.invoke(app, [])
    assert out.exit_code == 0
    assert max(len(line) for line in out.stdout.splitlines()) <= 80
    assert "…" not in out.stdout
    assert "deepseek-v3 " in out.stdout


def test_show_gives_layers_and_ledger() -> None:
    out = RUN.invoke(
        app, ["show", "gpt-oss-120b", "--gpu", "h100_sxm", "--tp", "2", "--weights-dtype", "mxfp4"]
    )
    assert out.exit_code == 0
    assert "window 128" in out.stdout
    assert "KV blocks of 16 tokens" in out.stdout
    assert "[assumption: as of Llama-3.1-8B]" in " ".join(out.stdout.split())


def test_json_is_json() -> None:
    out = RUN.invoke(app, ["show", "llama-3.1-8b", "--gpu", "h100_sxm", "--json"])
    facts = json.loads(out.stdout)
    assert facts["params"] == 8_030_261_248
    assert sum(line["bytes"] for line in facts["ledger"]["lines"]) == facts["ledger"]["hbm_bytes"]
    assert len(json.loads(RUN.invoke(app, ["--json"]).stdout)) >= 30


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"]])
def test_help_has_an_example(arguments: list[str]) -> None:
    out = RUN.invoke(app, arguments)
    assert out.exit_code == 0
    assert "Example" in out.stdout


def test_names_that_people_paste_are_understood() -> None:
    def ledger(*options: str) -> object:
        out = RUN.invoke(app, ["show", *options, "--json"])
        assert out.exit_code == 0, out.exception
        return json.loads(out.stdout)["ledger"]

    plain = ledger("llama-3.1-8b", "--gpu", "h200_sxm", "--engine", "vllm-0.15")
    pasted = ("meta-llama/Llama-3.1-8B-Instruct", "--gpu", "NVIDIA H200")
    assert ledger(*pasted, "--engine", "vllm==0.15.1") == plain
    assert ledger(*pasted, "--engine", "vllm") == ledger("llama-3.1-8b", "--gpu", "h200_sxm")
