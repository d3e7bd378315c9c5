"""The page of a scenario with variants, in a real browser; the sentence, on tables made by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from example_run import SLO, example_result, manifest
from markupsafe import Markup

from simserve.metrics import summarize
from simserve.metrics.comparison import write_comparison
from simserve.metrics.store import write_run
from simserve.report import write_report
from simserve.report.compare.settings import kv_sentences
from simserve.report.compare.words import comparison_headline
from simserve.report.page import plotly_js

PHONE = {"viewport": {"width": 390, "height": 800}}
PAIRED = {"paired-ttft", "paired-tpot", "paired-e2e"}
ALL = {"all-ttft", "all-tpot", "all-itl", "all-e2e", "all-time", "ttft-itl", "tail-tpot", "prompt-sources"}
ALL |= {"differences"} | PAIRED

DRAWN = """() => [...document.querySelectorAll('.chart')]
    .filter(box => box.querySelector('.main-svg')).map(box => [
    box.id,
    [...box.querySelectorAll('.scatterlayer .lines path, .barlayer .point path, .scatterlayer .points path')]
        .filter(path => Math.max(path.getBBox().width, path.getBBox().height) > 1).length,
    Math.max(...[...box.querySelectorAll('.main-svg')].map(svg => svg.getBoundingClientRect().right)),
])"""


def write_comparison_example(
    folder: Path, n: int, name: str = "Chat", rates: tuple[float, ...] = (8, 12, 9)
) -> Path:
    """Write a base and variants: the example run at several request rates."""
    names = ["base", *(f"v{i}" for i in range(1, len(rates)))]
    for variant, rate in zip(names, rates, strict=True):
        into = folder if variant == "base" else folder / "variants" / variant
        into.mkdir(parents=True)
        result = example_result(n, rate)
        facts = {**manifest(name), "workload": {"rate_scale": rate}}
        facts["trace"] = {**facts["trace"], "requests_sha256": "one"}
        write_run(into, result, summarize(result, SLO), "name: x\n", facts, SLO)
    write_comparison(folder, "base", names[1:])
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of 20,000 requests."""
    return write_comparison_example(tmp_path_factory.mktemp("comparison") / "run", 20_000)


def test_three_large_runs_are_at_most_1_1_megabytes_with_plotly_there_once(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 1_100_000, "each run of 20,000 requests adds 0.12 MB"
    assert page.count(plotly_js()) == 1
    assert "https://" not in page.replace(plotly_js(), "")


def test_same_folder_same_bytes(folder: Path) -> None:
    before = (folder / "report.html").read_bytes()
    assert write_report(folder).read_bytes() == before


@pytest.mark.parametrize("context", [{}, PHONE, {"color_scheme": "dark"}], ids=["wide", "phone", "dark"])
def test_every_chart_is_drawn_without_a_complaint(folder: Path, open_page: Any, context: Any) -> None:
    opened = open_page(folder / "report.html", **context)
    drawn = opened.page.evaluate(DRAWN)
    assert {name for name, *_ in drawn} == ALL
    width = opened.page.evaluate("innerWidth")
    for name, marks, right in drawn:
        assert marks >= (3 if name.startswith("all-") else 1), f"{name} is empty"
        assert right <= width, f"{name} sticks out"
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.complaints == []
    assert opened.requests == [(folder / "report.html").as_uri()]


def test_a_run_is_drawn_when_it_is_opened(folder: Path, open_page: Any) -> None:
    opened = open_page(folder / "report.html")
    opened.page.evaluate("document.querySelectorAll('details.run')[1].open = true")
    opened.page.wait_for_selector("#run1-over-time .main-svg")
    mine = {name: marks for name, marks, _ in opened.page.evaluate(DRAWN) if name.startswith("run")}
    assert set(mine) == {f"run1-{x}" for x in ("ttft", "tpot", "e2e", "over-time", "ttft-parts", "e2e-parts")}
    assert all(mine.values())
    assert opened.complaints == []


def test_ids_are_unique(folder: Path, open_page: Any) -> None:
    ids = open_page(folder / "report.html").page.evaluate(
        "[...document.querySelectorAll('[id]')].map(e => e.id)"
    )
    assert len(ids) == len(set(ids))


def test_numbers_in_the_table_are_those_of_the_summaries(folder: Path, open_page: Any) -> None:
    page = open_page(folder / "report.html").page
    shown = page.evaluate(
        "[...document.querySelectorAll('[data-measure]')]"
        ".map(e => [e.dataset.run, e.dataset.measure, e.value])"
    )
    assert len(shown) >= 3 * 15
    for name, key, value in shown:
        own = folder if name == "base" else folder / "variants" / name
        node = json.loads((own / "summary.json").read_text())
        if key.startswith("deployment."):
            continue
        for part in key.split("."):
            node = node[part]
        assert float(value) == node, (name, key)


def test_html_in_names_is_text(tmp_path: Path, open_page: Any) -> None:
    name = "<script>window.hacked = 1</script> & <b id='bold'>"
    run = write_comparison_example(tmp_path / "run", 300, name=name)
    opened = open_page(run / "report.html")
    assert opened.page.inner_text(".name") == name
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.query_selector("#bold") is None
    assert opened.complaints == []


@pytest.mark.parametrize("rates", [(8.0, 9.0), (8.0,) * 9])
def test_few_and_many_variants(tmp_path: Path, open_page: Any, rates: tuple[float, ...]) -> None:
    run = write_comparison_example(tmp_path / "run", 300, rates=rates)
    opened = open_page(run / "report.html")
    frontier = {"ttft-itl", "tail-tpot"} if len(rates) > 2 else set()
    assert {name for name, *_ in opened.page.evaluate(DRAWN)} == (ALL - {"ttft-itl", "tail-tpot"}) | frontier
    assert opened.complaints == []


def test_a_run_in_which_nothing_completed_is_no_error(tmp_path: Path, open_page: Any) -> None:
    run = write_comparison_example(tmp_path / "run", 300)
    result = example_result(300, 8)
    nothing = dataclasses.replace(
        result,
        status=result.status * 0 + 2,
        first_token_ns=result.first_token_ns * 0 - 1,
        last_token_ns=result.last_token_ns * 0 - 1,
    )
    write_run(run / "variants/v1", nothing, summarize(nothing, SLO), "name: x\n", manifest(), SLO)
    write_comparison(run, "base", ["v1", "v2"])
    opened = open_page(write_report(run))
    assert "v1 completes 0 of 300 requests" in opened.page.inner_text("h1")
    assert opened.complaints == []


def measure(key: str, unit: str = "ms", **values: float | None) -> dict[str, Any]:
    base = values["base"]
    assert base is not None
    differences = {
        name: None if value is None else {"absolute": value - base, "relative": (value - base) / base}
        for name, value in values.items()
        if name != "base"
    }
    return {"key": key, "label": key, "unit": unit, "values": values, "differences": differences}


def sentence(
    measures: list[dict[str, Any]],
    changes: dict[str, list[tuple[Any, ...]]],
    unstable: tuple[str, ...] = (),
    slo: dict[str, str] | None = None,
    kept: dict[str, float] | None = None,
    closed: bool = False,
) -> str:
    names = list(changes)
    return (
        Markup(
            comparison_headline(
                {
                    "base": "base",
                    "variants": names,
                    "measures": measures,
                    "changes": {
                        name: [{"name": n, "pool": "", "base": b, "variant": v} for n, b, v in found]
                        for name, found in changes.items()
                    },
                    "verdicts": {
                        name: {
                            "requests": 4,
                            "completed": 4,
                            "stability": "unstable" if name in unstable else "stable",
                        }
                        for name in ("base", *names)
                    },
                },
                slo,
                kept=kept,
                closed=closed,
            )
        )
        .striptags()
        .replace("\u00a0", " ")
    )


TOKENS = ("max_num_batched_tokens", 512, 8192)


def test_one_variant_says_what_changed_and_what_it_did() -> None:
    rows = [
        measure("whole.ttft_ms.p50", base=100, big=59),
        measure("whole.itl_ms.p99", base=10, big=23),
        measure("rates.output_tokens_per_s", "number", base=1000, big=1001),
    ]
    assert sentence(rows, {"big": [TOKENS]}) == (
        "Against base, big lowers median TTFT by 41 % and raises p99 ITL 2.3×."
    )


def test_one_variant_that_does_nothing() -> None:
    rows = [measure("whole.ttft_ms.p50", base=100, big=101)]
    assert sentence(rows, {"big": [TOKENS]}) == (
        "Against base, big changes neither latencies nor throughput by more than 2 %."
    )


def test_several_variants_say_who_is_best_and_what_it_costs() -> None:
    rows = [
        measure("whole.ttft_ms.p50", base=100, small=300, large=99),
        measure("whole.itl_ms.p99", base=40, small=10, large=50),
    ]
    changes = {"small": [(TOKENS[0], 512, 256)], "large": [TOKENS]}
    assert sentence(rows, changes) == ("Against base, p99 ITL ranges from −75 % (small) to +25 % (large).")


def test_a_closed_loop_is_compared_by_what_it_serves() -> None:
    """60 of 100 tokens/s are 40 % less, 107 are 7 % more, however much the first tokens wait."""
    rows = [
        measure("whole.ttft_ms.p50", base=100, skewed=900, placed=100),
        measure("rates.output_tokens_per_s", "number", base=100, skewed=60, placed=107),
    ]
    changes = {"skewed": [("expert_load", "uniform", "zipf")], "placed": [("placement", None, "topology")]}
    assert sentence(rows, changes, closed=True) == (
        "Against base, output tokens/s range from −40 % (skewed) to +7 % (placed)."
    )


@pytest.mark.parametrize("key", ["closed_loop.concurrency", "workload.rate_scale", "synthetic.requests"])
def test_a_variant_with_another_load_is_not_ranked(key: str) -> None:
    rows = [measure("whole.tpot_ms.p50", base=100, few=1, draft=50, drafts=80)]
    said = sentence(rows, {"few": [(key, 64, 4)], "draft": [], "drafts": []})
    assert said == "Against base, median TPOT falls by up to 50 % with draft."


def test_runs_that_tie_share_the_end() -> None:
    rows = [measure("whole.tpot_ms.p50", base=100, a=50, b=50.001)]
    assert sentence(rows, {"a": [], "b": []}).endswith("by up to 50 % with a and b.")
    rows = [measure("whole.tpot_ms.p50", base=100, a=50, b=50, c=50)]
    assert sentence(rows, {"a": [], "b": [], "c": []}).endswith("by up to 50 % with 3 runs.")


def test_an_unstable_variant_wins_nothing() -> None:
    rows = [measure("whole.itl_ms.p99", base=40, bad=1, good=20)]
    assert sentence(rows, {"bad": [], "good": [("tp", 1, 2)]}, unstable=("bad",)) == (
        "bad falls behind the arrivals (unstable); p99 ITL falls by up to 50 % with good."
    )


def test_variants_that_keep_up_where_the_base_does_not() -> None:
    rows = [measure("whole.ttft_ms.p50", base=9000, more=30, most=20)]
    changes = {"more": [("replicas", 1, 2)], "most": [("replicas", 1, 4)]}
    assert sentence(rows, changes, unstable=("base",)) == (
        "base falls behind the arrivals (unstable); the others have a median TTFT of 20 ms to 30 ms."
    )


def test_the_headline_says_who_meets_the_slo_then_the_cost_then_one_latency() -> None:
    rows = [
        measure("whole.ttft_ms.p50", base=100, slow=300, cheap=200),
        measure("cost_per_million_output_tokens", "number", base=2.0, slow=0.5, cheap=1.0),
    ]
    changes = {"slow": [TOKENS], "cheap": [("tp", 2, 1)]}
    met = {"base": "met", "slow": "missed", "cheap": "met"}
    assert sentence(rows, changes, slo=met) == (
        "base and cheap meet the SLO, slow misses it; cheap costs least, $1 per million output tokens; "
        "median TTFT rises up to 2× with cheap."
    ), "a run that misses the SLO is not the cheapest"
    assert sentence(rows[:1], changes, slo=met) == (
        "base and cheap meet the SLO, slow misses it; median TTFT rises up to 2× with cheap."
    )


def test_runs_that_all_miss_the_slo_have_no_cheapest() -> None:
    rows = [
        measure("cost_per_million_output_tokens", "number", base=2.0, other=1.0),
    ]
    missed = {"base": "missed", "other": "missed"}
    said = sentence(rows, {"other": []}, slo=missed, kept={"base": 0.52, "other": 0.35})
    assert said.startswith("Both runs miss the SLO: base keeps 52 % within it, other 35 %")
    assert "cost" not in said
    said = sentence(rows, {"other": []}, slo=missed | {"other": "inconclusive"})
    assert said.startswith("No run is shown to meet the SLO")


@pytest.mark.parametrize("runs", [2, 3, 7, 40])
@pytest.mark.parametrize("word", ["met", "missed", "inconclusive", "mixed", ""])
@pytest.mark.parametrize("priced", [False, True])
@pytest.mark.parametrize("shaky", [0, 1, 2])
def test_no_headline_has_more_than_25_words_or_names_a_setting(
    runs: int, word: str, priced: bool, shaky: int
) -> None:
    names = [f"v{i}" for i in range(1, runs)]
    values = {name: 10.0 * (i + 2) for i, name in enumerate(names)}
    rows = [measure("whole.ttft_ms.p50", base=10, **values), measure("whole.itl_ms.p99", base=999, **values)]
    if priced:
        rows.append(measure("cost_per_million_output_tokens", "number", base=1, **values))
    rotation = ("met", "missed", "inconclusive")
    slo = {n: rotation[i % 3] if word == "mixed" else word for i, n in enumerate(["base", *names])}
    said = sentence(rows, {name: [TOKENS] for name in names}, tuple(names[:shaky]), slo if word else None)
    assert len(said.split()) <= 25, said
    assert TOKENS[0] not in said
    assert ("SLO" in said) == bool(word)


def test_kv_sentences_only_where_runs_differ() -> None:
    rows = [
        {"key": f"deployment.{key}", "values": {"mla": mla, "gqa": gqa}}
        for key, mla, gqa in (
            ("kv_bytes_per_token", 70272, 249856),
            ("kv_bytes_per_token_per_gpu", 70272, 31232),
            ("decode_flop_per_kv_byte", 30.2, 12.0),
        )
    ]
    lines = [
        line.replace("\u00a0", " ")
        for line in kv_sentences({"base": "mla", "variants": ["gqa"], "measures": rows})
    ]
    assert "mla 68.6 KiB, gqa 30.5 KiB (of 244 KiB in all layers)" in lines[0]
    assert "mla 30.2, gqa 12" in lines[1]
    for row in rows:
        row["values"]["gqa"] = row["values"]["mla"]
    assert kv_sentences({"base": "mla", "variants": ["gqa"], "measures": rows}) == []
