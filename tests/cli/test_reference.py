"""The reference pages are what the program writes now, and leave no key unexplained."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from typer.main import get_group

from simserve.cli import SUB_APPS, app
from simserve.cli.reference import PAGES
from simserve.scenario.reference import (
    allowed_words,
    default_words,
    scenario_reference,
    type_words,
    unit_words,
)

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_is_up_to_date(name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == PAGES[name](), "run: make reference"


def test_every_key_has_a_meaning() -> None:
    rows = re.findall(r"^\| `([a-z0-9_]+)` \|.*\| (.*) \|$", scenario_reference(), flags=re.MULTILINE)
    assert len(rows) > 200
    assert [key for key, meaning in rows if not meaning.strip()] == []


def test_links_within_the_page_lead_to_its_headings() -> None:
    text = scenario_reference()
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9_-]", "", title.lower().replace(" ", "-")) for title in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors
    assert len(headings) == len(set(headings))


def test_every_command_is_there() -> None:
    text = PAGES["cli.md"]()
    for command in app.registered_commands:
        assert command.callback is not None
        assert f"\n## `simserve {command.name or command.callback.__name__}`" in text
    for name in SUB_APPS:
        group = get_group(importlib.import_module(f"simserve.cli.{name}").app)
        assert text.count(f"\n## `simserve {name}`\n") == 1
        assert all(f"\n### `simserve {name} {one}`\n" in text for one in group.commands)


def test_types_bounds_and_defaults_in_words() -> None:
    """Against JSON Schema's own meaning of these keywords."""
    optional = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None}
    assert (type_words(optional), allowed_words(optional)) == ("whole number", "≥ 1")
    assert default_words(optional) == "`null`"
    either = {
        "anyOf": [{"enum": ["a", "b"], "type": "string"}, {"type": "array", "items": {"type": "number"}}]
    }
    assert type_words(either) == "choice or list of numbers"
    assert allowed_words(either) == "`a`, `b`"
    assert allowed_words({"type": "number", "exclusiveMinimum": 0, "maximum": 1}) == "> 0, ≤ 1"
    assert default_words({"default": True}) == "`true`"
    assert default_words({}) == ""


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("ttft_ms", "ms"),
        ("gb_s", "GB/s"),
        ("rate_per_s", "1/s"),
        ("at_s", "s"),
        ("s", ""),
        ("solve_us", "us"),
    ],
)
def test_units_are_in_the_names(name: str, unit: str) -> None:
    assert unit_words(name) == unit
