"""The pages of studies in a real browser: the verdict stays in sight, axes hold what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simserve.report.study.capacity import write_capacity_page
from simserve.report.styles import looks

MEASURES = (
    "requests_per_s",
    "output_tokens_per_s",
    "ttft_ms.p50",
    "ttft_ms.p99",
    "tpot_ms.p50",
    "itl_ms.p99",
)


def point(load: float, ttft_ms: float, half_ms: float) -> dict[str, Any]:
    target = {"estimate": 0.9, "low": 0.85, "high": 0.95, "share": 0.9, "words": "90 % with TTFT ≤ 1 s"}
    return {
        "load": load,
        "means": dict.fromkeys(MEASURES, 10.0)
        | {"ttft_ms.p99": ttft_ms, "busy": 0.5, "kv_use_mean": 0.00325},
        "intervals": {"ttft_ms.p99": [ttft_ms - half_ms, ttft_ms + half_ms]},
        "targets": [target],
        "slo": "inconclusive",
        "stability": "stable",
        "limited_by": "compute",
    }


def capacity_page(folder: Path, half_ms: float) -> Path:
    study = {
        "kind": "capacity",
        "name": "x",
        "notes": [],
        "of": "rate",
        "unit": "requests/s",
        "range": [1, 8],
        "confidence": 0.95,
        "precision": 0.02,
        "replications": 2,
        "seed": 1,
        "command": "simserve capacity x",
        "targets": ["90 % with TTFT ≤ 1 s"],
        "capacity": {"low": 2.0, "high": 4.0, "estimate": 3.0},
        "points": [point(1.0, 50.0, 10.0), point(4.0, 2000.0, half_ms), point(8.0, 5000.0, half_ms)],
    }
    path = folder / "report.html"
    write_capacity_page(study, path)
    return path


@pytest.mark.parametrize("width", [390, 1440])
def test_the_verdict_is_in_sight_however_wide_the_table(tmp_path: Path, open_page: Any, width: int) -> None:
    page = open_page(capacity_page(tmp_path, 10.0), viewport={"width": width, "height": 900}).page
    for cell in page.locator("td.slo").all():
        box = cell.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= width
    assert page.inner_text("td:nth-child(10)") == "0.3\u00a0%"
    assert page.locator("nav a").count() == 5


@pytest.mark.parametrize(("half_ms", "kind"), [(10.0, "log"), (3000.0, "linear")])
def test_a_whisker_that_reaches_zero_has_a_linear_axis(
    tmp_path: Path, open_page: Any, half_ms: float, kind: str
) -> None:
    page = open_page(capacity_page(tmp_path, half_ms)).page
    axis = page.evaluate(
        "(({yaxis}) => [yaxis.type, yaxis.range[0]])"
        "(document.getElementById('curve-ttft_ms-p99')._fullLayout)"
    )
    assert axis[0] == kind
    assert kind == "log" or axis[1] == 0


def test_the_colour_of_the_base_does_not_return() -> None:
    found = looks([f"run{i}" for i in range(16)])
    assert [look.colour for look in found].count(found[0].colour) == 1
    assert len({(look.colour, look.dash) for look in found}) == 16
