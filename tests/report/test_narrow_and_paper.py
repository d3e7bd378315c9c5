"""The comparison on a phone and on paper: what must fit fits, and nothing lies over anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_compare_page import PHONE, write_comparison_example

OVERLAPS = """() => {
    const boxes = [...document.querySelectorAll(".chart .main-svg:first-child")]
        .map(s => s.getBoundingClientRect());
    return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b =>
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
}"""

TOUCHING_LABELS = """() => [...document.querySelectorAll('.chart')].flatMap(box => {
    const boxes = [...box.querySelectorAll('.xaxislayer-above .xtick text')]
        .filter(t => t.textContent).map(t => t.getBoundingClientRect()).sort((a, b) => a.left - b.left);
    return boxes.slice(1).filter((b, i) => b.left < boxes[i].right + 2).map(() => box.id);
})"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and one variant."""
    folder = tmp_path_factory.mktemp("narrow") / "run"
    return write_comparison_example(folder, 3000, rates=(8.0, 12.0)) / "report.html"


def test_on_paper_no_chart_lies_over_another(two: Path, open_page: Any) -> None:
    page = open_page(two, viewport={"width": 794, "height": 1123}).page
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".chart .main-svg").count() > 4
    assert page.evaluate(OVERLAPS) == []


def test_overlapping_charts_would_be_found(two: Path, open_page: Any) -> None:
    page = open_page(two).page
    page.add_style_tag(content=".charts { display: block; } figure { margin-bottom: -9rem; }")
    assert page.evaluate(OVERLAPS) != []


def test_a_phone_shows_both_runs_without_scrolling(two: Path, open_page: Any) -> None:
    page = open_page(two, **PHONE).page
    widths = "t => [t.parentElement.scrollWidth, t.parentElement.clientWidth]"
    needed, there = page.locator("table.compare").evaluate(widths)
    assert needed <= there


def test_an_assumption_without_spaces_stays_within_a_phone(two: Path, open_page: Any) -> None:
    """The specification of a generated trace is one long word."""
    page = open_page(two, **PHONE).page
    page.evaluate("document.querySelector('details.run').open = true")
    page.evaluate("document.querySelector('details.run li').textContent = 'requests'.repeat(40)")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_labels_of_an_axis_do_not_touch(two: Path, open_page: Any, width: int) -> None:
    page = open_page(two, viewport={"width": width, "height": 900}).page
    page.evaluate("document.querySelector('details.run').open = true")
    page.wait_for_selector("#run0-e2e .main-svg")
    assert page.evaluate(TOUCHING_LABELS) == []
