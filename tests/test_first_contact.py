"""docs/first-contact.md tells the truth about its tests: they exist, and the old wordings are gone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "first-contact.md").read_text(encoding="utf-8")
ITEMS = [
    f"{letter}{n}" for letter, last in (("A", 7), ("B", 6), ("C", 9), ("D", 10)) for n in range(1, last + 1)
]
ROWS = {row.split(" | ")[0].strip("| "): row for row in PAGE.splitlines() if row.startswith("| ")}
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py::test_\w+)`", PAGE)))


@pytest.mark.parametrize("item", ITEMS)
def test_every_item_names_a_test_that_holds_it(item: str) -> None:
    assert "::test_" in ROWS[item]


@pytest.mark.parametrize("name", TESTS)
def test_the_tests_that_are_named_exist(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


OLD = re.findall(r"^\| \d+ \| (.*?) \| .*? \|$", PAGE, re.MULTILINE)


def test_all_eighteen_wordings_are_listed() -> None:
    numbers = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert sorted(set(map(int, numbers))) == list(range(1, 19))


@pytest.mark.parametrize("wording", OLD)
def test_no_stilted_wording_is_left(wording: str) -> None:
    kinds = {"simserve": ("py", "j2"), "docs": ("md",), "scenarios": ("yaml",)}
    files = [path for top, ends in kinds.items() for end in ends for path in (ROOT / top).rglob(f"*.{end}")]
    texts = {
        path.name: " ".join(path.read_text(encoding="utf-8").split()) for path in [*files, ROOT / "README.md"]
    }
    assert [name for name, text in texts.items() if wording in text] == ["first-contact.md"]
