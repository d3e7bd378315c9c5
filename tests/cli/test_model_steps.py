"""`simserve models show --gpu`: where the time of a step goes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.cli.models.steps import bar

RUN = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})
SHOW = ["models", "show", "llama-3.1-8b", "--gpu", "h100_sxm"]


@pytest.mark.parametrize("model", ["deepseek-v3", "longcat-flash", "gpt-oss-120b"])
def test_fits_eighty_columns_and_cuts_nothing(model: str) -> None:
    out = RUN.invoke(
        app, ["models", "show", model, "--gpu", "b200_sxm", "--tp", "8", "--weights-dtype", "fp8"]
    )
    assert out.exit_code == 0, out.stderr
    assert max(len(line) for line in out.stdout.splitlines() if not line.startswith("estimated: ")) <= 80
    assert "…" not in out.stdout
    assert "Decode, 32 sequences at context 2,048" in out.stdout
    assert "one prompt of 2,048 tokens" in out.stdout


def test_parts_and_shares_add_up_and_say_where_they_come_from() -> None:
    steps = json.loads(RUN.invoke(app, [*SHOW, "--json"]).stdout)["steps"]
    for step in (steps["decode"], steps["prompt"]):
        assert sum(part["us"] for part in step["parts"]) == pytest.approx(step["step_us"])
        assert sum(part["share"] for part in step["parts"]) == pytest.approx(1)
        assert {part["provenance"] for part in step["parts"]} <= {
            "measured",
            "interpolated",
            "extrapolated",
            "analytic",
        }


def test_one_step_reads_the_weights_and_the_cache() -> None:
    """15 GB of weights and 34 GB of cache at 3.35 TB/s take 14.7 ms, and at half the bandwidth twice that."""
    load = ["--sequences", "64", "--context", "4096", "--json"]
    step = json.loads(RUN.invoke(app, [*SHOW, *load]).stdout)["steps"]["decode"]
    least_us = (2 * (8.03e9 - 128256 * 4096) + 64 * 4096 * 131072) / 3.35e12 * 1e6
    assert (step["sequences"], step["context"]) == (64, 4096)
    assert least_us < step["step_us"] < 2 * least_us


def test_degrees_and_types_reach_the_kernels() -> None:
    one, two, fp8 = (
        json.loads(RUN.invoke(app, [*SHOW, "--json", *more]).stdout)["steps"]["prompt"]
        for more in ([], ["--tp", "2"], ["--weights-dtype", "fp8"])
    )
    assert not any("all-reduce" in part["name"] for part in one["parts"])
    assert any("all-reduce" in part["name"] for part in two["parts"])
    assert two["step_us"] < one["step_us"]
    assert fp8["step_us"] < one["step_us"]


def test_without_a_gpu_there_is_no_time() -> None:
    out = RUN.invoke(app, ["models", "show", "llama-3.1-8b", "--json"])
    assert json.loads(out.stdout)["steps"] is None


def test_nothing_to_carry_is_refused() -> None:
    out = RUN.invoke(app, [*SHOW, "--sequences", "0"])
    assert out.exit_code == 2
    assert "--sequences 0" in out.stderr


def test_bar_is_cut_by_shares() -> None:
    assert bar([50, 25, 20], 100, 20) == "aaaaaaaaaabbbbbcccc."
    assert bar([1, 1, 1], 3, 4) == "abbc"
    assert bar([], 1, 3) == "..."
