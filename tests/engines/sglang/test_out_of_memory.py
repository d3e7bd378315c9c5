"""A prompt in progress that finds no memory ends SGLang's server: 'Prefill out of memory'.

Twenty answers grow beside the chunks of a prompt (mixed steps), and with conservativeness 0 nothing is kept
for them. The prompt was let in because it fitted at that moment; its last chunks do not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.deploy.build import build
from simserve.errors import ScenarioError
from simserve.scenario import load_scenario

SCENARIO = """
name: x
model: llama-3.1-8b
engine:
  preset: sglang-0.5.23
  schedule_conservativeness: {conservativeness}
  chunked_prefill_size: 128
  enable_mixed_chunk: true
workload: {{trace: t.csv, max_tokens: exact}}
pools: [{{gpu: rtx_4090, gpu_memory_utilization: 0.6965, max_model_len: 8500}}]
"""


def written(folder: Path, conservativeness: float) -> Path:
    """Write a scenario of twenty answers of 440 tokens, and a prompt of 3,000 when half is generated."""
    rows = [f"{50 * i},10,440" for i in range(20)] + ["5600,3000,100"]
    (folder / "t.csv").write_text("arrival_ms,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    (folder / "s.yaml").write_text(SCENARIO.format(conservativeness=conservativeness))
    return folder / "s.yaml"


def test_the_server_ends(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="Prefill out of memory") as caught:
        build(load_scenario(written(tmp_path, 0))).simulate()
    for word in ("request 20", "schedule_conservativeness", "20 running requests"):
        assert word in str(caught.value)


def test_the_command_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, 0)
    done = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "o")])
    assert done.exit_code == 2
    assert "Prefill out of memory" in done.stderr
    assert not (tmp_path / "o").exists()


def test_with_the_default_it_goes_on(tmp_path: Path) -> None:
    result = build(load_scenario(written(tmp_path, 1))).simulate()
    assert result.output_tokens.sum() == 20 * 440 + 100
