"""The tutorial works as it stands, the index lists every page, and links lead somewhere.

Numbers in the tutorial's output may move with the kernel tables; what surrounds them may not.
"""

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
    """Return a text without the width of its columns and with its numbers masked."""
    return " ".join(re.sub(r"[\d,.]*\d", "#", text).split())


def test_every_block_of_the_tutorial_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simserve: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = 0
    for language, body in blocks():
        if language == "yaml":
            (name,) = re.findall(r"\A# ([a-z]+\.yaml)", body)
            with Path(name).open("a") as file:
                file.write(body)
        elif language == "console":
            command, *shown = body.splitlines()
            done = simserve(*command.removeprefix("$ simserve ").split())
            assert done.exit_code == 0, f"{command}\n{done.output}"
            commands += 1
            for line in shown:
                assert words(line) in words(done.stdout), f"{command}: {line}"
    assert commands == 4


def test_a_line_that_is_not_printed_is_found() -> None:
    assert words("met by 97.2%, goodput 3.1") == words("met by 9%,   goodput 29.84")
    assert words("met by 97.2%") not in words("missed by 97.2%")


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
