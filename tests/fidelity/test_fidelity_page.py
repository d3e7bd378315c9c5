"""docs/fidelity.md has a place for every table that `make fidelity` writes, and none is empty."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.fidelity import PAGE, PARTS, TABLES
from simserve.errors import ScenarioError
from simserve.paths import data_dir
from simserve.scenario import load_scenario
from simserve.validation.page import effects_block, replace_block

TEXT = PAGE.read_text(encoding="utf-8")


def block(name: str) -> str:
    (found,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", TEXT, re.DOTALL)
    return found


@pytest.mark.parametrize("name", ["golden", "measured", "effects", *TABLES])
def test_every_table_has_its_marks_and_is_filled(name: str) -> None:
    assert "|---|" in block(name)


def test_no_marks_that_nobody_fills() -> None:
    assert set(re.findall(r"<!-- (\w+) -->", TEXT)) == {"golden", "measured", "effects", *TABLES}
    assert list(PARTS) == ["golden", "measured", "published", "effects"]


def test_the_page_shows_the_figures_of_the_scenarios() -> None:
    """Remade by `python -m benchmarks.fidelity effects` when a scenario comes or changes."""
    text = block("effects")
    shown = set(re.findall(r"^\| (\w+) \| ", text, re.MULTILINE)) - {"effect"}
    assert len(shown) >= 6
    for name in shown:
        for one in load_scenario(data_dir("scenarios") / "effects" / f"{name}.yaml").scenario.published:
            assert f"| {name} | {one.figure} |" in text


def figure(ratio: float, differs: str | None) -> dict[str, object]:
    common = {"figure": "f", "source": "s", "unit": "ratio", "published": 2.0, "ours": 2 * ratio}
    return {**common, "ratio": ratio, "differs": differs}


@pytest.mark.parametrize(("ratio", "named"), [(0.81, False), (1.19, False), (0.79, True), (1.21, True)])
def test_a_fifth_is_worth_a_reason(ratio: float, named: bool) -> None:
    text = effects_block({"x": [figure(ratio, "because")]})
    assert ("because" in text) == named
    assert f"| x | f | 2\u00a0× | {2 * ratio:.2f}\u00a0× | {ratio:.2f} |" in text


def test_a_page_without_the_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(ScenarioError, match="needs the marks <!-- x --> and <!-- /x --> once each"):
        replace_block(page, "x", "text")
