"""Collectives and exchanges between two real processes here, over gloo; started by us or by torchrun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from simserve.latency.tables.profiles import read_profile
from simserve.profiler.device import CannotTime
from simserve.profiler.job import Job
from simserve.profiler.ops import OPS
from simserve.profiler.ops.collective import KINDS, OverRanks
from simserve.profiler.rank_work import Order
from simserve.profiler.ranks import OwnRanks
from simserve.profiler.run import measure_case

ROOT = Path(__file__).parents[2]


def over_ranks(name: str) -> OverRanks:
    op = OPS[name]
    assert isinstance(op, OverRanks)
    return op


@pytest.fixture(scope="module")
def ranks():
    pool = over_ranks("collective").ranks
    assert pool is over_ranks("ep_a2a").ranks, "tables share their ranks"
    yield pool.get(2, "cpu")
    pool.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_is_right_and_timed(ranks: OwnRanks, kind: str) -> None:
    timing, error = ranks.measure(Order(kind, (1024, "fp32"), 0.05))
    assert error == 0
    assert timing.n_samples >= 5
    assert 0 < timing.p10_us <= timing.median_us <= timing.p90_us


def test_what_a_rank_cannot_do_is_said(ranks: OwnRanks) -> None:
    with pytest.raises(RuntimeError):
        ranks.measure(Order("all_reduce", (-2, "fp32"), 0.05))
    timing, _ = ranks.measure(Order("all_reduce", (16, "fp32"), 0.02))
    assert timing.median_us > 0


def made(op: str) -> Job:
    return Job.make("cpu", "cpu", ["tiny-mla-moe"], [op], [2], threads=1)


def test_a_row_of_the_table(ranks: OwnRanks) -> None:
    job = made("collective")
    assert {case["coll"] for case in job.cases} == set(KINDS)
    assert {case["ranks"] for case in job.cases} == {2}
    row = measure_case(job.cases[0], OPS["collective"], job.device, 0.05)
    assert row["status"] == "ok"
    assert row["key"]["impl"] == "gloo"


@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_tokens_go_to_their_experts_and_back(ranks: OwnRanks, phase: str) -> None:
    """Every token comes back once per rank that it visited, and more tokens take longer."""
    job = made("ep_a2a")
    cases = sorted(
        (case for case in job.cases if case["phase"] == phase), key=lambda case: case["tokens_per_rank"]
    )
    few, many = (measure_case(cases[at], OPS["ep_a2a"], job.device, 0.2) for at in (0, -1))
    assert few["status"] == many["status"] == "ok", (few, many)
    assert many["error"] < 1e-6
    # The tenth of the samples that other programs on the machine kept waiting least.
    assert many["p10_us"] > few["p10_us"]


def test_sizes_that_fp8_cannot_scale_are_unsupported_not_failed(ranks: OwnRanks) -> None:
    """A scale per 128 elements: every rank refuses, and goes on."""
    from simserve.profiler.tensors import by_row_groups

    with pytest.raises(CannotTime, match="divisible by it, got 96"):
        by_row_groups(torch.ones(2, 96), powers_of_two=False)
    order = Order("exchange", ("dispatch", "normal", "fp8", 96, 2, 4, 0, 8), 0.05)
    with pytest.raises(CannotTime, match="needs deep_ep"):
        ranks.measure(order)
    assert ranks.measure(Order("all_reduce", (16, "fp32"), 0.02))[1] == 0


def test_ranks_that_cannot_start_are_noted_once_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another program listens where groups of two want to meet; what one rank measures is measured."""
    from simserve.profiler import ranks

    taken = socket.create_server(("127.0.0.1", 0))
    tried: list[int] = []

    def port() -> int:
        tried.append(taken.getsockname()[1])
        return tried[-1]

    monkeypatch.setattr(ranks, "_free_port", port)
    monkeypatch.setattr(ranks, "START_S", 20.0)
    over_ranks("collective").ranks.close()
    job = Job.make("cpu", "cpu", ["tiny"], ["collective", "launch"], [2], threads=1)
    outcome = job.run(tmp_path, 90)
    lines = [json.loads(line) for line in (tmp_path / "cpu" / "journal.jsonl").read_text().splitlines()]
    rows = {line["op"]: line for line in lines if "case" in line}
    assert rows["launch"]["status"] == "ok"
    assert rows["collective"]["status"] == "unsupported"
    assert rows["collective"]["why"].startswith("2 ranks cannot start: ")
    assert len(tried) == 1, "every case tried again"
    assert outcome.left == 0
    taken.close()


def torchrun(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "simserve"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip


def test_torchrun_starts_the_ranks_and_one_of_them_writes(tmp_path: Path) -> None:
    """The world of two is measured though no --tp asks for it; kernels of one rank are measured beside."""
    options = ["--gpu-name", "cpu", "--models", "tiny-mla-moe", "--ops", "collective,ep_a2a,launch"]
    done = torchrun("profile", "run", *options, "--budget", "40s", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "cpu")
    lines = [json.loads(line) for line in (tmp_path / "cpu" / "journal.jsonl").read_text().splitlines()]
    assert sum("session" in line for line in lines) == 1, "more than one rank wrote"
    rows = [line for line in lines if "case" in line]
    assert len({row["case"] for row in rows}) == len(rows)
    assert {row["status"] for row in rows} == {"ok"}
    table = read_profile(tmp_path / "cpu" / "collective.parquet")
    assert table.values("ranks") == [2]
    assert set(table.values("coll")) == set(KINDS)
    assert len(read_profile(tmp_path / "cpu" / "ep_a2a.parquet")) > 0
    assert len(read_profile(tmp_path / "cpu" / "launch.parquet")) > 0
