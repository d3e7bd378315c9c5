"""The report as a reader sees it: in a real browser, from file://, without a network."""

from __future__ import annotations

import dataclasses
import json
import re

import pyarrow.parquet as pq
import pytest
from example_run import SLO, example_result, first_requests, manifest, write_example, write_result

from simserve.metrics import summarize, write_results
from simserve.report import write_report

PHONE = {"viewport": {"width": 390, "height": 800}}
CHARTS = {"ttft", "tpot", "e2e", "over-time", "ttft-parts", "e2e-parts"}

DRAWN = """() => [...document.querySelectorAll('.chart')].map(box => [
    box.id,
    [...box.querySelectorAll('.scatterlayer .lines path, .barlayer .point path')]
        .filter(path => path.getBBox().width > 1).length,
    box.getBoundingClientRect().width,
    Math.max(...[...box.querySelectorAll('.main-svg')].map(svg => svg.getBoundingClientRect().right)),
])"""


def test_loads_offline_without_a_complaint_or_a_request(run_folder, open_page):
    opened = open_page(run_folder / "report.html")
    opened.page.wait_for_selector(".main-svg")
    assert opened.complaints == []
    assert opened.requests == [(run_folder / "report.html").as_uri()]


@pytest.mark.parametrize("context", [{}, PHONE, {"color_scheme": "dark"}], ids=["wide", "phone", "dark"])
def test_every_chart_has_drawn_lines_or_bars(run_folder, open_page, context):
    drawn = open_page(run_folder / "report.html", **context).page.evaluate(DRAWN)
    assert {name for name, *_ in drawn} == CHARTS
    for name, marks, width, _ in drawn:
        assert marks >= 1, f"{name} is empty"
        assert width > 250, f"{name} is squeezed"


@pytest.mark.parametrize("width", [390, 768, 1280, 3840])
def test_nothing_is_wider_than_the_screen(run_folder, open_page, width):
    page = open_page(run_folder / "report.html", viewport={"width": width, "height": 900}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name, _, _, right in page.evaluate(DRAWN):
        assert right <= width, f"{name} sticks out"
    outside = page.evaluate(
        """width => [...document.querySelectorAll('main *, header *')]
            .filter(e => !e.closest('.scroll, pre, .chart') && e.getBoundingClientRect().right > width + 1)
            .map(e => e.outerHTML.slice(0, 80))""",
        width,
    )
    assert outside == []


def test_text_grows_with_the_screen(run_folder, open_page):
    sizes = []
    for width in (390, 3840):
        page = open_page(run_folder / "report.html", viewport={"width": width, "height": 900}).page
        sizes.append(page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)"))
    assert sizes[0] >= 15
    assert sizes[1] >= 22


LUMINANCE = """selector => {
    const style = getComputedStyle(document.querySelector(selector));
    const parse = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b) / 765;
    return [parse(style.backgroundColor), parse(style.color)];
}"""
CHART_TEXT = """() => getComputedStyle(document.querySelector('#over-time .xtick text')).fill
    .match(/[\\d.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b) / 765"""


def test_dark_scheme_turns_page_and_charts_and_follows_a_change(run_folder, open_page):
    page = open_page(run_folder / "report.html", color_scheme="dark").page
    paper, ink = page.evaluate(LUMINANCE, "html")
    assert paper < 0.2
    assert ink > 0.8
    assert page.evaluate(CHART_TEXT) > 0.5
    page.emulate_media(color_scheme="light")
    paper, ink = page.evaluate(LUMINANCE, "html")
    assert paper > 0.9
    assert ink < 0.2
    assert page.evaluate(CHART_TEXT) < 0.5


def test_print_is_light_and_charts_fit_the_paper(run_folder, open_page):
    page = open_page(run_folder / "report.html", color_scheme="dark").page
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    paper, _ = page.evaluate(LUMINANCE, "html")
    assert paper > 0.9
    assert page.evaluate(CHART_TEXT) < 0.5
    widths = page.evaluate(
        "[...document.querySelectorAll('.main-svg')].map(s => s.getBoundingClientRect().width)"
    )
    assert max(widths) <= 680, "A4 with margins is about 690 CSS pixels wide"
    assert len(page.pdf(format="A4")) > 10_000


def test_every_control_is_reached_by_the_keyboard(run_folder, open_page):
    page = open_page(run_folder / "report.html").page
    wanted = page.evaluate("document.querySelectorAll('a[href], summary, [tabindex=\"0\"]').length")
    seen = set()
    for _ in range(wanted):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    assert len(seen) == wanted
    page.evaluate("document.querySelector('summary').focus()")
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('summary').parentElement.open")


def at(value, key):
    for name in key.split("."):
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


SCALE = {"ms": 1, "s": 1000, "min": 60, "h": 3600, "%": 0.01}


def read(key, text, unit):
    """The number that a reader sees, in the unit of summary.json."""
    digits, word = re.fullmatch(r"\$?([\d,.e+-]+)\s*(ms|s|min|h|%)?", text).groups()
    word = unit or word
    scale = SCALE.get(word, 1)
    if word == "s" and key.endswith("_s"):
        scale = 1
    return float(digits.replace(",", "")) * scale


def test_numbers_on_the_page_are_those_of_the_summary(run_folder, open_page):
    summary = json.loads((run_folder / "summary.json").read_text())
    page = open_page(run_folder / "report.html").page
    shown = page.evaluate(
        "[...document.querySelectorAll('[data-key]')].map(e => [e.dataset.key, e.value ?? null, "
        "e.textContent.trim(), e.dataset.unit ?? null])"
    )
    assert len(shown) > 120
    for key, exact, text, unit in shown:
        value = at(summary, key)
        if value is None:
            assert text == "–", key
            continue
        assert float(exact) == value, key
        assert read(key, text, unit) == pytest.approx(value, rel=0.006, abs=1e-9), key
    keys = {key for key, *_ in shown}
    for key in ("requests_per_s", "ttft_ms.p50", "tpot_ms.p99", "e2e_ms.p95", "itl_ms.max", "slo.attainment"):
        assert {f"whole.{key}", f"steady.{key}"} <= keys


def test_the_headline_says_who_keeps_the_slo_at_which_load(run_folder, open_page):
    """n arrivals have n - 1 gaps between them; 99 % must be good."""
    requests = pq.read_table(run_folder / "requests.parquet")
    arrival_s = requests["arrival_ns"].to_numpy() / 1e9
    rate = (len(arrival_s) - 1) / (arrival_s.max() - arrival_s.min())
    whole = json.loads((run_folder / "summary.json").read_text())["whole"]
    does = "meet" if whole["slo"]["attainment"] >= 0.99 else "miss"
    heading = open_page(run_folder / "report.html").page.inner_text("h1").replace("\u00a0", " ")
    ttft, tpot = whole["ttft_ms"]["p50"], whole["tpot_ms"]["p50"]
    medians = f"median TTFT {ttft:.1f} ms, TPOT {tpot:.1f} ms"
    assert heading == f"2 × H100 SXM {does} the SLO at {rate:.1f} requests/s: {medians}."


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_run_of_few_requests_draws_without_complaint(tmp_path, open_page, n):
    opened = open_page(write_report(write_result(tmp_path / "run", first_requests(example_result(400), n))))
    assert opened.complaints == []
    assert opened.page.inner_text("h1")
    for name, marks, _, _ in opened.page.evaluate(DRAWN):
        assert marks >= 1 or n == 1, f"{name} is empty"


def test_html_in_the_scenario_name_is_text(tmp_path, open_page):
    name = "<script>window.hacked = 1</script><b id='bold'>bold</b> & \"quotes\" </script>"
    folder = write_example(tmp_path / "run", n=300, name=name)
    opened = open_page(write_report(folder))
    assert opened.page.inner_text(".name") == name
    assert name in opened.page.title()
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.query_selector("#bold") is None
    assert opened.complaints == []


EVIL = "<img src=x onerror='window.hacked = 1'><b id='bold'>bold</b> & \"quotes\" </script>"


def test_html_in_a_field_of_the_trace_or_of_the_deployment_is_text(tmp_path, open_page):
    """Wherever a name or a word of the user comes to the page: text, keys of charts, definitions."""
    facts = manifest()
    facts["trace"] |= {"name": EVIL, "format": EVIL, "assumptions": [EVIL], "changes": [EVIL]}
    facts |= {"model": {"name": EVIL}, "router": EVIL, "command": EVIL, "assumptions": [EVIL]}
    pool = facts["pools"][0] | {"name": EVIL, "gpu_name": EVIL, "engine": EVIL, "limit_reason": EVIL}
    pool["ledger"] = [{"name": EVIL, "bytes": 5, "basis": EVIL}]
    pool["engine_options"] = {EVIL: EVIL}
    facts["pools"] = [pool]
    result = example_result(400)
    replicas = tuple(
        dataclasses.replace(one, pool=EVIL, name=f"{EVIL}{i}") for i, one in enumerate(result.replicas)
    )
    pools = tuple(dataclasses.replace(one, pool=EVIL) for one in result.pools)
    result = dataclasses.replace(
        result, replicas=replicas, pools=pools, reasons=(EVIL,), warnings=(EVIL,), op_ns={EVIL: 1.0}
    )
    folder = tmp_path / "run"
    write_results(folder, result, summarize(result, SLO), f"name: {EVIL}\n", facts, slo=SLO)
    opened = open_page(write_report(folder))
    page = opened.page
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("window.hacked") is None
    assert page.query_selector("#bold") is None
    assert page.query_selector("img") is None
    assert page.inner_text("body").count("onerror='window.hacked = 1'") > 12
    assert any("onerror" in text for text in page.locator("#over-time text").all_text_contents())
    assert opened.complaints == []
