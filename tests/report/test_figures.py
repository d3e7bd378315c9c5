"""A stored run as pictures: what is written, and what is said where it cannot be."""

from __future__ import annotations

import builtins
import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ScenarioError
from simserve.metrics.folder import check_target
from simserve.report.figures import write_figures

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


def test_figures_in_svg(folder: Path, browser: Any) -> None:
    pytest.importorskip("kaleido", reason="kaleido is missing: pip install 'simserve[figures]'")
    files = write_figures(folder, "svg")
    assert {file.name for file in files} == {f"{name}.svg" for name in CHARTS}
    root = ET.parse(folder / "figures" / "ttft.svg").getroot()
    assert root.attrib["width"] == "720"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 5


def test_without_kaleido_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "kaleido":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ScenarioError, match=r"pip install 'simserve\[figures\]'"):
        write_figures(folder, "png")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_unknown_format_is_refused(folder: Path) -> None:
    with pytest.raises(ScenarioError, match=r"--figures pgn: allowed: svg, png, json \(did you mean 'png'"):
        write_figures(folder, "pgn")
