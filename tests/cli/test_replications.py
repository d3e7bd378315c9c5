"""`replications: n`: the n runs that one could do by hand, with the intervals that scipy gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from simserve.cli.tables import half_width
from simserve.metrics.replications import Estimate

Call = Callable[..., Any]
KEY = "whole.ttft_ms.p99"


def read(folder: Path, name: str = "summary.json") -> dict[str, Any]:
    return json.loads((folder / name).read_text())


@pytest.fixture
def by_hand(small: Path, simserve: Call) -> list[float]:
    """p99 TTFT of three runs with their own seeds."""
    values = []
    for seed in (3, 4, 5):
        assert simserve("run", small, "--set", f"seed={seed}", "--out", f"s{seed}").exit_code == 0
        values.append(read(Path(f"s{seed}"))["whole"]["ttft_ms"]["p99"])
    return values


def test_it_is_the_runs_of_the_seeds_with_students_interval(
    small: Path, simserve: Call, by_hand: list[float]
) -> None:
    done = simserve("run", small, "--set", "replications=3", "--out", "all")
    assert done.exit_code == 0, done.output
    found = read(Path("all"))["replications"]
    assert (found["n"], found["seeds"], found["random"], found["confidence"]) == (3, [3, 4, 5], True, 0.95)
    assert found["measures"][KEY]["values"] == by_hand
    low, high = stats.t.interval(0.95, 2, np.mean(by_hand), stats.sem(by_hand))
    assert (found["measures"][KEY]["low"], found["measures"][KEY]["high"]) == pytest.approx((low, high))
    assert "Means over 3 runs, seeds 3 to 5" in done.stdout
    assert f"±{high - np.mean(by_hand):.1f}" in done.stdout
    page = (Path("all") / "report.html").read_text()
    assert f'data-interval="{KEY}" data-low="{found["measures"][KEY]["low"]}"' in page


def test_without_it_nothing_changes_and_with_it_the_first_run_does_not(small: Path, simserve: Call) -> None:
    simserve("run", small, "--out", "one")
    simserve("run", small, "--set", "replications=1", "--out", "same")
    simserve("run", small, "--set", "replications=2", "--out", "two")
    for name in ("summary.json", "scenario.resolved.yaml", "requests.parquet"):
        assert Path("one", name).read_bytes() == Path("same", name).read_bytes()
    assert Path("one/requests.parquet").read_bytes() == Path("two/requests.parquet").read_bytes()
    one, two = read(Path("one")), read(Path("two"))
    del one["slo_verdict"], two["slo_verdict"]  # of all seeds together
    assert {key: two[key] for key in one} == one
    assert two.keys() - one.keys() == {"replications"}


def test_the_resolved_scenario_gives_the_same_replications(small: Path, simserve: Call) -> None:
    simserve("run", small, "--set", "replications=2", "--out", "a")
    simserve("run", "a/scenario.resolved.yaml", "--out", "b")
    assert Path("a/summary.json").read_bytes() == Path("b/summary.json").read_bytes()


def test_what_never_varies_has_no_interval(small: Path, simserve: Call) -> None:
    simserve("run", small, "--set", "replications=2", "--out", "a")
    completed = read(Path("a"))["replications"]["measures"]["counts.completed"]
    assert completed == {"values": [40, 40], "mean": 40, "low": None, "high": None}


def test_an_interval_that_is_cut_at_its_end_is_as_wide_as_its_longer_side() -> None:
    cut_at_1 = Estimate((0.9, 1.0), mean=0.95, low=0.31, high=1.0)
    cut_at_0 = Estimate((2.0, 6.0), mean=4.0, low=0.0, high=29.4)
    assert half_width(cut_at_1, unit=100) == "±64.0"
    assert half_width(cut_at_0) == "±25.4"


def test_a_scenario_without_chance_says_so(small: Path, simserve: Call) -> None:
    changes = ("workload.synthetic=null", "workload.trace=traces/chat.csv.gz", "workload.limit=30")
    options = [part for text in (*changes, "replications=2") for part in ("--set", text)]
    done = simserve("run", small, *options, "--out", "a")
    assert done.exit_code == 3, "30 requests of a trace are too few to tell whether the load is carried"
    found = read(Path("a"))["replications"]
    assert found["random"] is False
    assert all(one["low"] is None for one in found["measures"].values())
    assert "nothing depends on the seed" in " ".join(done.stdout.split())
    assert "±" not in done.stdout
    page = (Path("a") / "report.html").read_text()
    assert "nothing here depends on the seed" in page
    assert "data-interval" not in page


def test_variants_are_compared_seed_by_seed(small: Path, simserve: Call) -> None:
    with small.open("a") as file:
        file.write("replications: 4\ncompare:\n  small: {engine: {max_num_batched_tokens: 512}}\n")
    assert simserve("run", small, "--out", "a").exit_code == 0
    base = read(Path("a"))["replications"]["measures"][KEY]["values"]
    variant = read(Path("a/variants/small"))["replications"]["measures"][KEY]["values"]
    table = read(Path("a"), "compare.json")
    (row,) = [row for row in table["measures"] if row["key"] == KEY]
    difference = row["differences"]["small"]
    wanted = stats.ttest_rel(variant, base).confidence_interval(0.95)
    assert (difference["low"], difference["high"]) == pytest.approx((wanted.low, wanted.high))
    assert difference["absolute"] == pytest.approx(np.mean(variant) - np.mean(base))
    assert row["values"] == {"base": pytest.approx(np.mean(base)), "small": pytest.approx(np.mean(variant))}
    assert table["replications"] == {"n": 4, "seeds": [3, 4, 5, 6], "confidence": 0.95}


def test_folders_with_other_seeds_are_not_paired(small: Path, simserve: Call) -> None:
    for out, seed in (("a", 1), ("b", 1), ("c", 7)):
        simserve("run", small, "--set", "replications=2", "--set", f"seed={seed}", "--out", out)
    same = json.loads(simserve("compare", "a", "b", "--json").stdout)
    other = json.loads(simserve("compare", "a", "c", "--json").stdout)
    assert "replications" in same
    assert "replications" not in other


def test_a_variant_may_not_have_its_own(small: Path, simserve: Call) -> None:
    with small.open("a") as file:
        file.write("compare:\n  more: {replications: 3}\n")
    done = simserve("run", small)
    assert done.exit_code == 2
    assert "compare.more.replications: a variant runs under the scenario's replications" in done.stderr


def test_fail_on_slo_judges_the_requests_of_all_seeds(small: Path, simserve: Call) -> None:
    """32 steady requests a seed, all good: 0.025 ** (1 / 32) = 89.1 % are shown, of three seeds 96.2 %."""
    for seeds, wanted, code in ((1, 0.89, 0), (1, 0.9, 3), (3, 0.96, 0), (3, 0.97, 3)):
        options = ("--set", f"replications={seeds}", "--set", f"slo.attainment={wanted}", "--force")
        done = simserve("run", small, *options, "--fail-on-slo", "--out", "b")
        assert done.exit_code == code, done.output
        found = read(Path("b"))["slo_verdict"]
        assert found["checks"][0]["low"] == pytest.approx(0.025 ** (1 / (32 * seeds)), abs=1e-6)
