"""Published figures in a scenario: refused where they make no sense; ours beside them by plain arithmetic."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simserve.errors import ScenarioError
from simserve.metrics.comparison import published_rows
from simserve.scenario import load_scenario
from tests.tiny import tiny

SCENARIO = (
    tiny(requests=5)
    + """\
base_name: one
compare: {two: {}}
published:
  - FIGURE
"""
)
GOOD = "{figure: f, value: 2, source: s, measure: whole.ttft_ms.p50, of: two, over: one}"


def load(tmp_path: Path, figure: str) -> Any:
    path = tmp_path / "x.yaml"
    path.write_text(SCENARIO.replace("FIGURE", figure))
    return load_scenario(path)


def test_a_figure_is_about_the_whole_and_no_variant_has_it(tmp_path: Path) -> None:
    loaded = load(tmp_path, GOOD)
    assert loaded.scenario.published[0].runs() == ["two", "one"]
    assert loaded.variants["two"].scenario.published == ()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("of: two", "of: tow"), r"published\[0\]: no run 'tow' \(did you mean 'two'\?\); runs: one, two"),
        (("ttft_ms.p50", "ttft_ms.p05"), r"unknown measure .* \(did you mean 'whole\.ttft_ms"),
        (("value: 2", "value: 0"), "published.*value"),
        (("source: s, ", ""), "published.*source"),
        (("source: s", "sauce: s"), "unknown key 'sauce'"),
    ],
)
def test_refused(tmp_path: Path, changed: tuple[str, str], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load(tmp_path, GOOD.replace(*changed))


def test_a_variant_may_not_publish(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(SCENARIO.replace("FIGURE", GOOD).replace("two: {}", "two: {published: []}"))
    with pytest.raises(ScenarioError, match="a variant runs under the scenario's published"):
        load_scenario(path)


def run(rate: float, tail_ms: float, verdict: str = "stable", **manifest: Any) -> Any:
    whole = {
        "requests_per_s": rate,
        "itl_ms": {"p99": tail_ms, "mean": tail_ms / 2},
        "slo": {"limits": {"itl_ms": 100}},
    }
    summary = {
        "whole": whole,
        "rates": whole,
        "pools": [],
        "stability": {"verdict": verdict},
        "counts": {"completed": 9},
    }
    return SimpleNamespace(summary=summary, manifest=manifest)


def figure(**of: Any) -> dict[str, Any]:
    return {"figure": "f", "source": "s", "value": 2.0, **of}


RUNS = {
    "a": run(1, 50),
    "b": run(2, 100),
    "c": run(3, 101),
    "d": run(4, 90, "unstable"),
}


@pytest.mark.parametrize(
    ("of", "ours"),
    [
        ({"measure": "capacity", "of": ["a", "b", "c", "d"]}, 2),  # c breaks the limit, d falls behind
        ({"measure": "capacity", "of": ["b"], "over": "a"}, 2),
        ({"measure": "capacity", "of": ["c", "d"]}, None),
        ({"measure": "whole.itl_ms.mean", "of": "b"}, 50),
        ({"measure": "whole.itl_ms.mean", "of": "b", "over": "a"}, 2),
        ({"measure": "whole.requests_per_s"}, 1),  # of the base
    ],
)
def test_ours_and_the_ratio(of: dict[str, Any], ours: float | None) -> None:
    runs = {**RUNS, "a": run(1, 50, published=[figure(**of)])}
    (row,) = published_rows(runs)
    assert row["ours"] == ours
    assert row["ratio"] == (None if ours is None else ours / 2)


def test_figures_about_other_runs_are_left_out() -> None:
    listed = [figure(measure="capacity", of="z"), figure(measure="capacity")]
    assert len(published_rows({"a": run(1, 50, published=listed)})) == 1
