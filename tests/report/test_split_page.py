"""The page of a prefill/decode split: its stages, its links, and the chart against the ratio."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.metrics.comparison import read_comparison
from simserve.report.compare.ratio import Point, ratio_sentences
from simserve.report.compare.words import split_headline
from simserve.report.words import number


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, options in {
        "pd_split": ["workload.limit=60"],
        "pd_ratio": ["workload.limit=120", "pools.0.replicas=1", "pools.1.replicas=2"],
    }.items():
        made[name] = tmp_path_factory.mktemp("split") / name
        args = ["run", f"scenarios/{name}.yaml", "--out", str(made[name]), "--quiet"]
        for option in options:
            args += ["--set", option]
        finished = CliRunner().invoke(app, args)
        assert finished.exit_code in (0, 3), finished.output
    return made


def test_the_stages_stand_in_the_page(folders: dict[str, Path]) -> None:
    folder = folders["pd_split"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    split = json.loads((folder / "summary.json").read_text())["split"]
    assert split["requests"] == 60
    for stage in ("prefill_queue", "prefill", "transfer", "decode_queue", "first_step"):
        value = re.search(rf'data-key="split.stages_ms.{stage}.mean" value="([^"]+)"', page)
        assert value is not None, stage
        assert float(value[1]) == split["stages_ms"][stage]["mean"]
    assert 'id="run0-ttft-stages"' in page
    assert page.count('data-key="split.links.') == 2 * 4
    assert 'id="ratio-rate"' not in page  # one split and none


def test_the_aggregated_run_has_no_stages(folders: dict[str, Path]) -> None:
    variant = folders["pd_split"] / "variants" / "aggregated"
    assert "split" not in json.loads((variant / "summary.json").read_text())


def test_a_sweep_is_drawn_against_the_ratio(folders: dict[str, Path]) -> None:
    page = (folders["pd_ratio"] / "report.html").read_text(encoding="utf-8")
    for chart in ("ratio-rate", "ratio-ttft", "ratio-tpot"):
        assert f'id="{chart}"' in page
    assert "balance formula" in page
    assert '"1p2d"' in page
    assert '"2p1d"' in page


def test_the_page_begins_with_the_answer(folders: dict[str, Path]) -> None:
    """Goodput of the best split and of none, as the stored runs have them."""
    found = read_comparison(folders["pd_split"])
    assert found is not None
    text = str(split_headline(found.runs))
    for name in ("split", "aggregated"):
        rates = found.runs[name].summary["rates"]
        assert f"<code>{name}</code>" in text
        assert number(rates["goodput_requests_per_s"]) in text
    assert text in (folders["pd_split"] / "report.html").read_text(encoding="utf-8")
    assert split_headline({name: run for name, run in found.runs.items() if name == "split"}) is None


def test_what_the_pools_say_is_not_said_again(folders: dict[str, Path]) -> None:
    table = json.loads((folders["pd_split"] / "compare.json").read_text())
    assert [change["name"] for change in table["changes"]["aggregated"]] == ["pools"]
    assert "for prefill" in table["changes"]["aggregated"][0]["base"]


def point(prefill: int, decode: int, rate: float) -> Point:
    name = f"{prefill}p{decode}d" if prefill else "none"
    return Point(name, prefill, decode, prefill / 4, rate, 100.0, 200.0, 10.0)


def test_the_crossover_is_between_neighbours() -> None:
    splits = [point(1, 3, 4.0), point(2, 2, 9.0), point(3, 1, 6.0)]
    text = " ".join(ratio_sentences(splits, [point(0, 0, 7.0)], slo=True))
    assert "2p2d" in text
    assert "between 1p3d and 2p2d; 2p2d and 3p1d" in text
    never = " ".join(ratio_sentences(splits, [point(0, 0, 10.0)], slo=True))
    assert "No ratio of a split beats that" in never
    always = " ".join(ratio_sentences(splits, [point(0, 0, 1.0)], slo=False))
    assert "Every ratio" in always
