"""What commands print, word by word, at 60, 80 and 200 columns.

The words are in snapshots/<columns>.txt. After a change that is meant, look at the difference after

    SIMSERVE_SNAPSHOTS=write pytest tests/cli/test_snapshots.py && git diff tests/cli/snapshots
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simserve.cli import app
from tests.tiny import tiny

KEPT = Path(__file__).parent / "snapshots"
SCENARIO = tiny(
    "Small chat",
    requests=60,
    pool="{name: all, gpu: h100_sxm, price_per_gpu_hour: 2.5}",
    slo="{ttft_ms: 500, tpot_ms: 25, attainment: 0.9}",
).replace("seed: 3\n", "")
BLOCKS = {
    "one.yaml": "",
    "more.yaml": "compare:\n  two_replicas_of_it: {pools: [{name: all, gpu: h100_sxm, replicas: 2}]}\n"
    "  overloaded: {engine: {max_num_seqs: 1}}\n",
    "sweep.yaml": "sweep: {over: {engine.max_num_batched_tokens: [256, 2048], pools.0.tp: [1, 2]}}\n",
    "size.yaml": "size: {catalogue: {h100_sxm: {price_per_gpu_hour: 2.5}}, tp: [1], replicas: 2}\n",
    "capacity.yaml": "capacity: {of: rate, from: 4, to: 64, replications: 2, precision: 0.2}\n",
    "search.yaml": "search: {over: {pools.0.tp: [1, 2]}, minimise: [gpus], trials: 2}\n",
    "wrong.yaml": "slo2: {ttft_ms: 1}\nsweep: {over: {pools.0.tpp: [1, 2]}}\n",
}
COMMANDS = [
    "run one.yaml --out one --force",
    "run more.yaml --out more --force",
    "run one.yaml --check",
    "compare more",
    "sweep sweep.yaml --out sweep --workers 1",
    "size size.yaml --out size --workers 1",
    "capacity capacity.yaml --out capacity --workers 1",
    "search search.yaml --out search --workers 1",
    "init --model llama-3.1-8b --gpu H100-SXM --rate 4 --prompt-tokens 500 --output-tokens 50 --force",
    "run wrong.yaml",
    "run one.yaml --set pools.0.gpu=h1000",
    "run one.yaml --set model=llama-3.1-70b",
    "run nothere.yaml",
    "validate one.yaml",
    "gpus show h100_sxm",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenarios, and the studies of the widths before: these are found, not run again."""
    folder = tmp_path_factory.mktemp("snapshots")
    for name, block in BLOCKS.items():
        (folder / name).write_text(SCENARIO + block, encoding="utf-8")
    return folder


def printed(command: str, columns: int) -> str:
    runner = CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": "1", "SIMSERVE_DEBUG": "0"})
    done = runner.invoke(app, command.split())
    out = re.sub(r"about (\d+ s|1 min) here", "about N s here", done.stdout)
    text = f"$ simserve {command}\n{out}"
    text += "".join(f"stderr: {line}\n" for line in done.stderr.splitlines())
    return "\n".join(line.rstrip() for line in f"{text}exit code {done.exit_code}\n".splitlines())


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_words_are_those_that_were_read(
    columns: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed: pip install -e '.[search]'")
    monkeypatch.chdir(folder)
    found = "\n\n".join(printed(command, columns) for command in COMMANDS) + "\n"
    file = KEPT / f"{columns}.txt"
    if os.environ.get("SIMSERVE_SNAPSHOTS") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    kept = file.read_text(encoding="utf-8")
    assert found == kept, "\n".join(difflib.unified_diff(kept.splitlines(), found.splitlines(), lineterm=""))
