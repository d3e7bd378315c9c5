"""What a page says in words: the verdict, the warnings, definitions, and relative differences."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.metrics.definitions import DEFINITIONS
from simserve.report.compare.differences import paired_charts, relative_differences
from simserve.report.compare.settings import changes_words, signed
from simserve.report.study.words import sweep_headline
from simserve.report.warnings import warnings
from simserve.report.words import anchor, definition_of, load_in_words, term_filter


def summary(attainment: float = 0.96, **more: Any) -> dict[str, Any]:
    whole = {
        "slo": {
            "limits": {"ttft_ms": 500, "itl_ms": 50},
            "attainment": attainment,
            "itl_within_share": 0.999,
        },
        "ttft_ms": {"p50": 200.0, "p99": 900.0},
    }
    counts = {"requests": 100, "refused": 0, "unfinished": 0}
    base = {"whole": whole, "counts": counts, "provenance": {"extrapolated": 0.01}, "warnings": []}
    return base | {"stability": {"verdict": "stable", "reason": "x"}} | more


@pytest.mark.parametrize(("share", "lines"), [(0.0, 0), (0.049, 0), (0.3, 1), (0.9999, 1)])
def test_estimated_time_is_warned_of_like_extrapolated_time(share: float, lines: int) -> None:
    found = warnings(summary(provenance={"analytic": share, "extrapolated": 0.0}))
    assert len(found) == lines
    assert all("estimated" in line for line in found)


def test_warnings_say_what_must_be_known_first() -> None:
    assert warnings(summary()) == []
    found = warnings(
        summary(
            stability={"verdict": "unstable", "reason": "it grew"},
            counts={"requests": 100, "refused": 3, "unfinished": 0},
            provenance={"extrapolated": 0.051},
            warnings=["a link is busy"],
        )
    )
    assert [line.split(":")[0][:12] for line in found] == [
        "Overloaded",
        "A link is bu",
        "3 of 100 req",
        "5.1\u00a0% of the",
    ]


def test_exactly_five_percent_extrapolated_is_not_said() -> None:
    assert warnings(summary(provenance={"extrapolated": 0.05})) == []


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("TTFT, median", "TTFT"),
        ("requests/s", "throughput"),
        ("KV mean", "KV use"),
        ("Cost", "cost"),
        ("GPUs", None),
    ],
)
def test_labels_find_their_definitions(label: str, name: str | None) -> None:
    assert definition_of(label, DEFINITIONS) == name


def test_a_label_with_html_in_it_is_text() -> None:
    assert "<b>" not in term_filter(DEFINITIONS)("<b>GPUs</b>")
    assert "<b>" not in term_filter(["<b>x</b>"])("<b>x</b>")
    assert anchor("E2E per <token>") == "def-e2e-per-token"


def table(low: float | None = None, high: float | None = None) -> dict[str, Any]:
    difference = {"absolute": -50.0, "relative": -0.5, "low": low, "high": high}
    rows = [
        {
            "key": key,
            "label": key,
            "better": better,
            "values": {"a": 100.0, "b": 50.0},
            "differences": {"b": difference},
        }
        for key, better in (("whole.ttft_ms.p50", "lower"), ("rates.requests_per_s", "higher"))
    ]
    return {"base": "a", "variants": ["b"], "measures": rows, "paired": {"b": None}}


def test_half_of_the_base_is_drawn_at_half() -> None:
    (trace,) = relative_differences(table())["data"]
    assert trace["x"] == [0.5, 0.5]
    assert trace["customdata"][0] == "whole.ttft_ms.p50: −50 %"
    assert "error_x" not in trace


def test_whiskers_are_the_interval_of_the_difference_and_0_in_it_is_open() -> None:
    (trace,) = relative_differences(table(-60.0, -40.0))["data"]
    assert trace["error_x"]["array"] == pytest.approx([0.1, 0.1])
    assert trace["marker"]["symbol"] == ["circle", "circle"]
    (trace,) = relative_differences(table(-110.0, 10.0))["data"]
    assert trace["marker"]["symbol"] == ["circle-open", "circle-open"]


def test_runs_of_other_requests_are_not_paired() -> None:
    class Run:
        requests = None

    figures = paired_charts({"a": Run(), "b": Run()}, table())  # pyright: ignore[reportArgumentType]
    assert all(not figure["data"] for figure in figures.values())


def change(name: str, base: Any, variant: Any) -> dict[str, Any]:
    return {"name": name, "pool": "", "base": base, "variant": variant}


def test_a_mapping_is_told_by_its_kind_and_by_what_sets_it_apart() -> None:
    usual = {"kind": "eplb", "per_batch": False, "copies": 32, "interval": None}
    placements = {
        "plain": usual,
        "again": usual,
        "per_batch": usual | {"per_batch": True},
        "topology": usual | {"kind": "topology"},
    }
    words = changes_words({name: [change("placement", None, one)] for name, one in placements.items()})
    assert words == {
        "plain": ["placement not set → eplb"],
        "again": ["placement not set → eplb"],
        "per_batch": ["placement not set → eplb, per_batch on"],
        "topology": ["placement not set → topology"],
    }
    alone = changes_words({"one": [change("placement", "contiguous", usual), change("tp", 1, 2)]})
    assert alone == {"one": ["placement contiguous → eplb, per_batch off, copies 32", "tp 1 → 2"]}


def test_mappings_without_a_kind_show_all_that_differs() -> None:
    sizes = {name: {"ffn_gpus": n, "batches": 3} for name, n in (("a", 8), ("b", 12), ("c", 12))}
    words = changes_words({name: [change("afd", None, one)] for name, one in sizes.items()})
    assert words["b"] == ["afd not set → ffn_gpus 12"]
    switches = {name: {"two_batch": True, "order": name} for name in ("engine", "ideal")}
    words = changes_words({name: [change("overlap", None, one)] for name, one in switches.items()})
    assert words["ideal"] == ["overlap not set → two_batch on, order ideal"]


def test_differences_have_no_digits_that_say_nothing() -> None:
    assert [signed(value) for value in (0.00169, -0.00045, 0.0451, -893.2)] == [
        "+0.002",
        "0",
        "+0.045",
        "−893",
    ]


def load(arrived: int = 101, period_s: float = 50.0, **workload: Any) -> str:
    done = {"completed": 100, "prompt_tokens": 400_000, "output_tokens": 20_000}
    summary = {"counts": {"arrived": arrived, **done}, "stability": {"arrival_period_s": period_s}}
    return load_in_words(summary, {"workload": workload})


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ({}, "2 requests/s offered"),
        ({"rate_scale": 2.0, "scale_by": "compress"}, "2 requests/s offered, 2 times the trace's rate"),
        ({"closed_loop": {"concurrency": 64}}, "closed loop of 64 requests in flight"),
        ({"closed_loop": {"users": 1200}}, "1,200 users, who pause between requests"),
    ],
)
def test_the_load_is_said_as_it_was_asked_for(workload: dict[str, Any], words: str) -> None:
    """101 arrivals in 50 s have 100 gaps between them."""
    assert load(**workload) == f"{words}; 4,000 prompt and 200 output tokens on average"


def test_a_load_that_nobody_saw_is_not_said() -> None:
    assert load(arrived=1, period_s=0.0) == "4,000 prompt and 200 output tokens on average"


def sweep_sentence(costs: list[float], **settings: list[Any]) -> str:
    points = [
        {
            "point": i,
            "settings": {name: values[i] for name, values in settings.items()},
            "means": {"cost_per_million_output_tokens": cost},
            "slo": "met",
        }
        for i, cost in enumerate(costs)
    ]
    return sweep_headline({"points": points, "kind": "sweep", "targets": ["x"]}, points)


def test_points_that_cost_the_same_to_three_digits_tie() -> None:
    said = sweep_sentence([0.3371, 0.3369, 0.3374, 0.35], seqs=[64, 128, 64, 64], tp=[1, 1, 1, 2])
    assert said.endswith("is $0.337, a tie of 3 points, all with tp = 1")
    assert sweep_sentence([0.337, 0.337], tp=[1, 2]).endswith("is $0.337, a tie of 2 points")
    assert sweep_sentence([0.337, 0.338], tp=[1, 2]).endswith("is $0.337 with tp = 1")


@pytest.mark.parametrize("load", ["rate", "rate_scale", "users"])
def test_the_load_is_never_chosen(load: str) -> None:
    assert sweep_sentence([0.2, 0.3], tp=[1, 2], **{load: [1.5, 3.0]}).endswith("is $0.20 with tp = 1")
    assert sweep_sentence([0.2, 0.3], **{load: [1.5, 3.0]}).endswith("is $0.20")
