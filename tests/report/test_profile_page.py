"""The page of a GPU's kernel profiles, in a real browser."""

from __future__ import annotations

import pytest

from simserve.report.profile_page import write_profile_page

TABLES = [
    {
        "op": "gemm",
        "rows": 5,
        "left_out": 2,
        "covered": "n 64..128 <b>",
        "backends": "engine 1.0",
        "sources": ["tables 1.0, Apache-2.0"],
    }
]
MAPS = [
    {
        "operation": "products, bf16",
        "x_name": "tokens",
        "y_name": "weights",
        "x": [1.0, 2048.0],
        "y": ["10", "11"],
        "efficiency": [[0.25, None], [0.5, 1.2]],
        "rows": [[1, 0], [2, 2]],
    },
    {
        "operation": "collectives",
        "x_name": "bytes",
        "y_name": "",
        "x": [256.0, 1048576.0],
        "y": ["all-reduce over 8"],
        "efficiency": [[0.01, 0.9]],
        "rows": [[1, 1]],
    },
]


@pytest.fixture
def page_file(tmp_path):
    path = tmp_path / "profile.html"
    write_profile_page("some_gpu", TABLES, MAPS, "simserve profile show some_gpu", path)
    return path


@pytest.mark.parametrize(
    "context", [{}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 800}}]
)
def test_draws_every_map_offline_and_within_the_screen(page_file, open_page, context):
    opened = open_page(page_file, **context)
    page = opened.page
    page.wait_for_selector("#map-1 .barlayer .point path")
    cells = ".barlayer .point path"
    assert page.locator(f"#map-0 {cells}").count() == 3, "a cell that nobody measured stays empty"
    assert page.locator(f"#map-1 {cells}").count() == 2
    assert opened.complaints == []
    assert opened.requests == [page_file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_says_what_is_measured(page_file, open_page):
    page = open_page(page_file).page
    text = page.inner_text("main")
    assert "5 rows; 75\u00a0% of the cells measured; best 120\u00a0%" in text
    assert "n 64..128 <b>" in text
    ticks = page.locator("#map-1 .xtick text").all_text_contents()
    assert [tick.strip() for tick in ticks] == ["256 B", "1 MiB"]


def test_same_figures_give_the_same_bytes(page_file, tmp_path):
    again = tmp_path / "again.html"
    write_profile_page("some_gpu", TABLES, MAPS, "simserve profile show some_gpu", again)
    assert again.read_bytes() == page_file.read_bytes()
