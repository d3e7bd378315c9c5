"""How charts, tables and legends stand on a wide screen: full rows, numbers near labels, marks as drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_compare_page import write_comparison_example
from test_first_screen import COMMON, study_point, sweep_page
from test_study_page import capacity_page

from simserve.report.study.pages import write_sweep_page

WIDE = {"viewport": {"width": 1440, "height": 900}}

HOLES = """() => [...document.querySelectorAll('.charts')].flatMap(grid => {
    const rows = new Map();
    for (const figure of grid.querySelectorAll(':scope > figure')) {
        const box = figure.getBoundingClientRect();
        if (box.width) rows.set(Math.round(box.top), (rows.get(Math.round(box.top)) || 0) + box.width);
    }
    return [...rows.values()].filter(width => width < 0.8 * grid.getBoundingClientRect().width);
})"""
"""Widths of rows of charts that leave more than a fifth of the page empty."""

WAY = """() => [...document.querySelectorAll('table tbody tr')].map(row => {
    const [label, first] = [row.querySelector('th'), row.querySelector('td')];
    if (!label || !first || !first.textContent.trim()) return 0;
    const [from, to] = [label, first].map(cell => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return range.getBoundingClientRect();
    });
    return to.left - from.right;
})"""
"""Pixels between the end of each row's label and its first number."""

AXES = """() => [...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => {
    const box = plot.getBoundingClientRect();
    return [...plot.querySelectorAll('text')].filter(text => {
        const own = text.getBoundingClientRect();
        const inside = own.left >= box.left - 1 && own.right <= box.right + 1 && own.bottom <= box.bottom + 1;
        return own.width && !inside;
    }).map(text => text.textContent);
})"""
"""Words of charts that are cut off at the chart's edge."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rows")
    for name in ("sweep", "three", "capacity"):
        (folder / name).mkdir()
    compared = write_comparison_example(folder / "compare", 2000, rates=(8.0, 12.0))
    return {
        "compare": compared / "report.html",
        "sweep": sweep_page(folder / "sweep"),
        "three": three_settings(folder / "three"),
        "capacity": capacity_page(folder / "capacity", 10.0),
    }


def three_settings(folder: Path) -> Path:
    """A sweep over three settings, each of which has a chart."""
    points = []
    for number in range(6):
        point = study_point(number, "met" if number else "missed", **{"ttft_ms.p99": 20.0 * number + 5})
        point["settings"] = point["settings"] | {
            "engine.max_num_seqs": 32 << (number % 2),
            "pools.0.tp": 1 + number % 3,
        }
        points.append(point)
    study = COMMON | {"kind": "sweep", "paths": list(points[0]["settings"]), "points": points}
    write_sweep_page(study, folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize("kind", ["compare", "sweep", "three", "capacity"])
def test_no_chart_stands_alone_beside_a_hole(pages: dict[str, Path], open_page: Any, kind: str) -> None:
    page = open_page(pages[kind], **WIDE).page
    assert page.evaluate("() => document.querySelectorAll('.charts > figure').length") >= 2
    assert page.evaluate(HOLES) == []


def test_three_settings_stand_in_one_row(pages: dict[str, Path], open_page: Any) -> None:
    page = open_page(pages["three"], **WIDE).page
    tops = page.evaluate(
        """() => [...document.querySelector('.charts').children]
            .map(e => Math.round(e.getBoundingClientRect().top))"""
    )
    assert len(tops) == 3
    assert len(set(tops)) == 1


def test_a_hole_would_be_found(pages: dict[str, Path], open_page: Any) -> None:
    page = open_page(pages["three"], **WIDE).page
    page.add_style_tag(content=".charts, .charts.two { grid-template-columns: 1fr 1fr 1fr 1fr !important; }")
    page.add_style_tag(content=".charts > figure { grid-column: auto !important; }")
    assert page.evaluate(HOLES)


def test_the_first_number_stands_near_its_label(pages: dict[str, Path], open_page: Any) -> None:
    """650 px lay between them once."""
    ways = open_page(pages["compare"], **WIDE).page.evaluate(WAY)
    assert len(ways) > 20
    assert max(ways) < 350


@pytest.mark.parametrize("kind", ["compare", "sweep", "three", "capacity"])
@pytest.mark.parametrize("width", [390, 1440])
def test_no_word_of_a_chart_is_cut_off(pages: dict[str, Path], open_page: Any, kind: str, width: int) -> None:
    page = open_page(pages[kind], viewport={"width": width, "height": 900}).page
    assert page.evaluate("() => document.querySelectorAll('.js-plotly-plot text').length") > 10
    assert page.evaluate(AXES) == []


def test_the_legend_of_dots_shows_dots(pages: dict[str, Path], open_page: Any) -> None:
    """Lines stood in the legend of the picture of differences once."""
    page = open_page(pages["compare"], **WIDE).page
    keys = page.evaluate(
        """() => [...document.querySelectorAll('.beside .keys, #differences')].map(e =>
            [e.textContent.trim(), e.querySelectorAll('.line').length])"""
    )
    assert [lines for text, lines in keys if "●" in text] == [0]
