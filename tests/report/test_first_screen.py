"""The first screen of every kind of page: tiles hold what they show, the verdict is seen, nothing scrolls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_compare_page import write_comparison_example
from test_study_page import MEASURES, capacity_page

from simserve.report.study.pages import write_size_page, write_sweep_page

SHARES = {"measured_share": 0.1, "interpolated_share": 0.6, "extrapolated_share": 0.2, "analytic_share": 0.1}
MEANS = dict.fromkeys((*MEASURES, "tpot_ms.p99", "e2e_ms.p99", "gpus", "goodput_per_gpu"), 10.0) | {
    "cost_per_million_output_tokens": 0.3,
    "price_per_hour": 20.0,
    "busy": 0.9,
    "kv_use_mean": 0.2,
    "hit_rate": 0.0,
    "estimated_share": 0.3,
    **SHARES,
}
TARGET = {"name": "attainment", "words": "95 % with TTFT ≤ 1 s", "share": 0.95}


def study_point(number: int, slo: str = "met", **means: float) -> dict[str, Any]:
    settings = {"engine.max_num_batched_tokens": 512 * 2**number, "engine.max_num_seqs": 64}
    return {
        "point": number,
        "settings": settings,
        "status": "done",
        "slo": slo,
        "stability": "stable",
        "limited_by": "HBM bandwidth",
        "means": MEANS | means,
        "intervals": {},
        "targets": [TARGET | {"estimate": 0.97, "low": 0.96, "high": 0.98}],
    }


COMMON = {
    "name": "Chat",
    "command": "simserve sweep x.yaml",
    "model": "llama-3.1-8b",
    "engine": "vllm-0.33",
    "currency": "$",
    "confidence": 0.95,
    "replications": 1,
    "seed": 0,
    "targets": [TARGET["words"]],
}


def sweep_page(folder: Path) -> Path:
    points = [study_point(i, "met" if i else "missed", **{"ttft_ms.p99": 10.0 * i + 5}) for i in range(4)]
    paths = list(points[0]["settings"])
    write_sweep_page(COMMON | {"kind": "sweep", "paths": paths, "points": points}, folder / "report.html")
    return folder / "report.html"


def size_page(folder: Path) -> Path:
    pool = {"gpu": "h100_sxm", "replicas": 6, "tp": 1, "pp": 1, "dp": 1}
    entry = study_point(0) | {
        "settings": {"gpu": "h100_sxm", "weights_dtype": "fp8", "max_num_batched_tokens": 2048},
        "pools": [pool | {"role": "prefill"}, pool | {"role": "decode"}],
        "units": 6,
        "words": "h100_sxm",
        "gpus": 12,
        "price_per_hour": 30.0,
        "shortfall": "",
        "stopped": "",
        "breaks_first": "TPOT: p95 is 31.4 ms, 78 % of its limit",
        "file": "best.yaml",
    }
    work = {"deployments": 776, "families": 64, "simulated": 51, "stopped_early": 44, "simulated_requests": 9}
    rest = {"missed": [], "missed_in_all": 0, "impossible": [], "families": [], "work": work}
    write_size_page(COMMON | {"kind": "size", "feasible": [entry], **rest}, folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def pages(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name in ("sweep", "size", "capacity"):
        (folder / name).mkdir()
    compared = write_comparison_example(folder / "compare", 3000, rates=(8.0, 12.0))
    return {
        "run": run_folder / "report.html",
        "compare": compared / "report.html",
        "sweep": sweep_page(folder / "sweep"),
        "size": size_page(folder / "size"),
        "capacity": capacity_page(folder / "capacity", 10.0),
    }


TOO_FULL = """() => [...document.querySelectorAll('.tile, .tile *')]
    .filter(e => e.closest('svg') === null && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)
    .map(e => e.outerHTML.slice(0, 90))"""
OUT_OF_TILE = """() => [...document.querySelectorAll('.tile')].flatMap(tile => {
    const box = tile.getBoundingClientRect();
    return [...tile.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > box.right + 1)
        .map(e => e.outerHTML.slice(0, 90));
})"""
SCREENS = [(1440, 900), (390, 844)]


@pytest.mark.parametrize("kind", ["run", "compare", "sweep", "size", "capacity"])
@pytest.mark.parametrize("screen", SCREENS, ids=["wide", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_answer_is_in_the_first_screen(
    pages: dict[str, Path], open_page: Any, kind: str, screen: tuple[int, int], scheme: Any
) -> None:
    width, height = screen
    opened = open_page(pages[kind], viewport={"width": width, "height": height}, color_scheme=scheme)
    page = opened.page
    assert opened.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    tiles = page.locator(".tile").all()
    assert len(tiles) >= 2
    first = tiles[0].bounding_box()
    assert first["y"] + first["height"] <= height, "the tile that answers is in sight"
    assert 0 <= first["x"] < first["x"] + first["width"] <= width
    assert page.evaluate(TOO_FULL) == []
    assert page.evaluate(OUT_OF_TILE) == []
    assert page.evaluate("[...document.querySelectorAll('.spark')].filter(s => !s.ariaLabel).length") == 0
    assert page.locator("nav a[href='#again']").count() == 1
    for cell in page.locator("td.slo").all():
        box = cell.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= width


def test_a_tile_that_is_too_full_would_be_found(pages: dict[str, Path], open_page: Any) -> None:
    page = open_page(pages["run"]).page
    page.evaluate("document.querySelector('.tile-value').textContent = 'requests'.repeat(30)")
    assert page.evaluate(TOO_FULL) or page.evaluate(OUT_OF_TILE)


def test_a_size_shows_money_latencies_and_the_command(pages: dict[str, Path], open_page: Any) -> None:
    page = open_page(pages["size"]).page
    text = page.inner_text("body").replace("\u00a0", " ")
    answer = "6 prefill + 6 decode H100 SXM with fp8 weights meet the SLO for $30/h"
    assert page.inner_text("h1") == f"{answer}, the cheapest of 776 deployments"
    assert "simserve run best.yaml" in text
    assert page.locator("[data-latency='ttft_ms.p99']").inner_text() == "10\u00a0ms"
    shares = {e.get_attribute("data-basis"): e.inner_text() for e in page.locator("[data-basis]").all()}
    assert shares["extrapolated"] == "20\u00a0%"
    assert shares["analytic"] == "10\u00a0%"
    warned = (page.locator(".warnings").text_content() or "").replace("\u00a0", " ")
    assert "2 warnings: 10 % of the simulated time is estimated" in warned
    assert "20 % of the simulated time is extrapolated" in warned
