"""The guides: commands and settings work, rows are those of the scenario, every scenario has its place.

Every scenario that a guide names is run from the command line in tests/golden, so here commands are only
resolved; what a guide changes is run, on few requests.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from simserve.scenario import load_scenario

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
PAGES = sorted(path.name for path in GUIDES.glob("*.md") if path.name != "README.md")
SCENARIOS = sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml"))
MOST_BYTES = 150_000
FIRST_COLUMN = {"TTFT", "TPOT", "ITL", "E2E", "queueing"}
"""Rows of the table of a scenario without variants."""


def text(page: str) -> str:
    return (GUIDES / page).read_text(encoding="utf-8")


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (page, body)
        for page in PAGES
        for body in re.findall(rf"```{language}\n(.*?)```", text(page), flags=re.DOTALL)
    ]


@pytest.mark.parametrize(("page", "body"), blocks("console"))
def test_commands_name_a_scenario_and_show_its_rows(page: str, body: str) -> None:
    command, *shown = body.splitlines()
    words = shlex.split(command.removeprefix("$ simserve run "))
    overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    loaded = load_scenario(words[0], overrides)
    runs = {loaded.scenario.base_name, *loaded.variants}
    rows = [line.split("│")[1].strip() for line in shown if line.startswith("│")]
    assert set(rows) - {""} <= (runs if loaded.variants else FIRST_COLUMN)


def small(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario with few requests, in variants too."""
    workload = settings["workload"]
    if "closed_loop" in workload:
        workload["closed_loop"] = {"concurrency": 8}
    return settings | {"workload": workload | {"limit": 12}}


@pytest.mark.parametrize(("page", "body"), blocks("yaml"))
def test_what_a_guide_changes_runs(
    page: str, body: str, tmp_path: Path, simserve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = re.findall(r"\A# beside the rest of scenarios/(\w+\.yaml)\n", body)
    settings = YAML(typ="safe").load(ROOT / "scenarios" / name)
    changes = YAML(typ="safe").load(body)
    assert set(changes) <= {"engine", "pools", "compare", "transfer", "base_name"}
    monkeypatch.chdir(tmp_path)
    merged = small({key: value for key, value in settings.items() if key != "compare"} | changes)
    with Path("mine.yaml").open("w") as file:
        YAML().dump(merged, file)
    done = simserve("run", "mine.yaml", "--quiet")
    assert done.exit_code == 0, done.output


def test_every_scenario_has_its_place_in_the_index() -> None:
    listed = re.findall(
        r"`(\w+)`", "".join(re.findall(r"\|([^|]*)\|$", text("README.md"), flags=re.MULTILINE))
    )
    assert sorted(listed) == SCENARIOS


@pytest.mark.parametrize("page", PAGES)
def test_a_guide_has_its_parts_and_fits_the_eye(page: str) -> None:
    lines = text(page).splitlines()
    assert lines[0].endswith("?")
    for part in ("## What to read in the report", "## Make it yours", "## What it does not say"):
        assert part in lines
    assert len(lines) <= 90
    assert max(map(len, lines)) <= 132


def test_guides_name_the_scenarios_of_the_index() -> None:
    for row in text("README.md").splitlines():
        found = re.match(r"\|[^|]*\| \[([a-z-]+\.md)\]\([a-z-]+\.md\) \| (.*) \|", row)
        for name in re.findall(r"`(\w+)`", found[2]) if found else []:
            assert f"scenarios/{name}.yaml" in text(found[1]) if found else True


def test_pictures_are_small_and_used() -> None:
    for picture in GUIDES.glob("*.svg"):
        assert picture.stat().st_size < MOST_BYTES
        assert any(f"({picture.name})" in text(page) for page in PAGES)
