"""What the guides show is accepted as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simserve.scenario import load_scenario
from simserve.study.capacity import require_capacity
from simserve.study.layouts import families
from simserve.study.plan import plan_sweep
from simserve.study.points import require_sweep
from simserve.study.search import require_search
from simserve.study.size import require_size
from tests.study.conftest import SMALL

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("sweeps", "capacity", "sizing", "search")


def guide(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GUIDES)
def test_the_example_is_a_study(name: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", guide(name), flags=re.DOTALL)
    base = "\n".join(line for line in SMALL.splitlines() if not (line.startswith("slo:") and "slo:" in block))
    path = tmp_path / "guide.yaml"
    path.write_text(f"{base}\n{block}")
    it = load_scenario(path)
    if name == "sweeps":
        points = plan_sweep(it, require_sweep(it))
        assert len(points) == 6 * 4 * 5
        assert 0 < sum(bool(point.reason) for point in points) < len(points)
    elif name == "capacity":
        assert require_capacity(it).high == 2
    elif name == "sizing":
        spec = require_size(it)
        assert len(families(it, spec)) == 2 * 4 * 2 * 2 * (1 + 2)
    else:
        assert require_search(it).trials == 60


@pytest.mark.parametrize("name", GUIDES)
def test_the_commands_and_pictures_exist(name: str) -> None:
    text = guide(name)
    for scenario in re.findall(r"scenarios/\w+\.yaml", text):
        assert (DOCS.parent / scenario).is_file()
    pictures = re.findall(r"\]\((\S+\.png)\)", text)
    assert pictures
    assert all((DOCS / picture).is_file() for picture in pictures)
