"""The tutorial works as it stands, to the digit; the index lists every page, and links lead somewhere."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"```(\w+)\n(.*?)```", TUTORIAL, flags=re.DOTALL)


def words(text: str) -> str:
    """Return a text without the width of its columns."""
    return " ".join(text.split())


def edited(text: str, how: str, lines: list[str]) -> str:
    """Return a scenario after an edit that the tutorial shows."""
    if how == "continued":
        return text + "\n".join([*lines, ""])
    for line in lines:
        key = line.partition(":")[0]
        (old,) = [f"# {line}"] if how == "uncommented" else re.findall(rf"^{key}:.*$", text, re.MULTILINE)
        assert f"\n{old}\n" in text, old
        text = text.replace(f"\n{old}\n", f"\n{line}\n")
    return text


def test_the_tutorial_gives_every_number_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simserve: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = []
    for language, body in blocks():
        if language == "yaml":
            head, *lines = body.splitlines()
            name, how = re.findall(r"# ([a-z]+\.yaml), (\w+)", head)[0]
            Path(name).write_text(edited(Path(name).read_text(), how, lines))
        elif language == "console":
            command, *shown = body.splitlines()
            done = simserve(*command.removeprefix("$ simserve ").split())
            assert done.exit_code == 0, f"{command}\n{done.output}"
            commands.append(command.split()[2])
            for line in shown:
                assert words(line) in words(done.stdout), f"{command}: {line}\n{done.stdout}"
    assert commands == ["trace", "trace", "init", "run", "run", "run", "compare", "size"]


def test_a_number_that_is_not_printed_is_found() -> None:
    assert words("│ TTFT │ 9.1 │") == words("│  TTFT   │    9.1 │")
    assert words("│ TTFT │ 9.1 │") not in words("│ TTFT │ 9.2 │")


def test_the_index_lists_every_page() -> None:
    listed = re.findall(r"\]\(([A-Za-z/-]+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8"))
    own = [page for page in PAGES if not page.startswith("guides/")]
    assert sorted(listed) == sorted({*own, "guides/README.md"} - {"README.md"})
    guides = re.findall(r"\]\(([a-z-]+\.md)\)", (DOCS / "guides/README.md").read_text(encoding="utf-8"))
    assert sorted({f"guides/{page}" for page in guides} | {"guides/README.md"}) == [
        page for page in PAGES if page.startswith("guides/")
    ]


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    folder = (DOCS / page).parent
    assert [link for link in links if not (folder / link).exists()] == []


@pytest.mark.parametrize("page", ["tutorial.md", "how-it-works.md"])
def test_settings_and_commands_that_are_named_exist(page: str, simserve: Callable[..., Any]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for name in sorted(set(re.findall(r"`simserve ([a-z]+)", text))):
        assert simserve(name, "--help").exit_code == 0, name


@pytest.mark.parametrize("picture", sorted(path.name for path in DOCS.glob("*.svg")))
def test_pictures_are_well_formed_and_used(picture: str) -> None:
    ET.parse(DOCS / picture)
    assert any(f"({picture})" in (DOCS / page).read_text(encoding="utf-8") for page in PAGES)
