"""A stored run as pictures: what is written, and what is said where it cannot be."""

from __future__ import annotations

import builtins
import json
import math
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ScenarioError
from simserve.metrics.store import check_target
from simserve.report.figures import _printed, write_figures
from simserve.report.svg import svg

CHARTS = {"over-time", "ttft", "tpot", "e2e", "ttft-parts", "e2e-parts"}


@pytest.fixture
def folder(run_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run_folder, tmp_path / "run")


def test_figures_as_plotly_reads_them(folder: Path) -> None:
    files = write_figures(folder, "json")
    assert {file.stem for file in files} == CHARTS
    for file in files:
        text = file.read_text()
        assert "$" not in text  # every colour has its value
        assert json.loads(text)["layout"]["width"] == 720
    check_target(folder, force=True)  # they are part of the run's folder


SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def no_kaleido(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "kaleido":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setenv("PATH", "")  # and no browser


@pytest.mark.usefixtures("no_kaleido")
def test_svg_needs_neither_kaleido_nor_a_browser(folder: Path) -> None:
    files = write_figures(folder, "svg")
    assert {file.name for file in files} == {f"{name}.svg" for name in CHARTS}
    before = [file.read_bytes() for file in files]
    for file in files:
        root = ET.parse(file).getroot()
        assert root.attrib["width"] == "720"
        assert len(list(root.iter(f"{SVG}polyline")) + list(root.iter(f"{SVG}rect"))) > 2
    assert [file.read_bytes() for file in write_figures(folder, "svg")] == before


def test_a_curve_is_drawn_where_its_values_are(folder: Path) -> None:
    """The median of TTFT stands at half the height, and between the ticks around it on a logarithmic axis."""
    write_figures(folder, "svg")
    median = json.loads((folder / "summary.json").read_text())["whole"]["ttft_ms"]["p50"]
    root = ET.parse(folder / "figures" / "ttft.svg").getroot()
    texts = {text.text: text.attrib for text in root.iter(f"{SVG}text")}
    zero, full = float(texts["0 %"]["y"]), float(texts["100 %"]["y"])
    at = {float(name): float(spot["x"]) for name, spot in texts.items() if name and name.isdigit()}
    low, high = min(at), max(at)
    share = math.log(median / low) / math.log(high / low)
    wanted = at[low] + share * (at[high] - at[low])
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in root.iter(f"{SVG}circle")]
    assert any(abs(x - wanted) < 0.2 and abs(y - (zero + full) / 2 + 4) < 0.2 for x, y in dots)


def test_names_with_html_in_them_are_text_in_svg() -> None:
    trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "<b>&",
        "x": [1, 2],
        "y": [1, 2],
        "line": {"width": 1},
    }
    layout = {"height": 10, "margin": {}, "annotations": []}
    text = svg(_printed({"data": [trace, trace | {"name": "two"}], "layout": layout}))
    words = [one.text for one in ET.fromstring(text).iter(f"{SVG}text")]
    assert "<b>&" in words


def test_an_unknown_kind_of_trace_is_not_left_out() -> None:
    layout = {"height": 10, "margin": {}}
    with pytest.raises(ValueError, match="type pie"):
        svg(_printed({"data": [{"type": "pie", "x": [1], "y": [1]}], "layout": layout}))


def test_figures_in_png(folder: Path, browser: Any) -> None:
    pytest.importorskip("kaleido", reason="kaleido is missing: pip install -e '.[figures]'")
    files = write_figures(folder, "png")
    assert {file.name for file in files} == {f"{name}.png" for name in CHARTS}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


@pytest.mark.usefixtures("no_kaleido")
def test_without_kaleido_it_says_what_to_install(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ScenarioError, match=r"pip install -e '\.\[figures\]'"):
        write_figures(folder, "png")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_unknown_format_is_refused(folder: Path) -> None:
    with pytest.raises(ScenarioError, match=r"--figures pgn: allowed: svg, png, json \(did you mean 'png'"):
        write_figures(folder, "pgn")
