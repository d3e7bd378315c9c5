"""The recipes of CONTRIBUTING.md, applied to a copy of the package and run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.places import REPOSITORY

PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
_, _CHAPTER, _ = re.split(r"^## Recipes$|^## Rules for code$", PAGE, flags=re.MULTILINE)
_TITLE, *_SECTIONS = re.split(r"^### (.*)$", _CHAPTER, flags=re.MULTILINE)
RECIPES = dict(zip(_SECTIONS[::2], _SECTIONS[1::2], strict=True))
SHOWN = {
    "A router": "router.kind=by_size",
    "A scheduler": "with lifo",
    "A trace reader": "900",
    "A model": "small-llama",
    "A kind of layer": "6,144 B per token",
    "A GPU": "Example GPU",
    "A kernel to measure": "profiles",
    "An engine version": "vllm-0.34",
    "A section of the report": "out/report.html",
}
"""Something that the commands print, or that the page they write says."""


class Block(NamedTuple):
    """A fenced block, and the file that the text before it names."""

    file: str
    language: str
    text: str


def blocks(recipe: str) -> list[Block]:
    found = re.findall(r"(?:`([\w./-]+)`:\n\n)?^```(\w+)\n(.*?)^```$", recipe, re.DOTALL | re.MULTILINE)
    return [Block(*one) for one in found]


def changed(text: str, diff: str) -> str:
    """Put the lines with + in place of those with -; those and the lines without a sign stand there once."""
    lines = diff.splitlines()
    old = "\n".join(line[1:] for line in lines if line[:1] != "+")
    new = "\n".join(line[1:] for line in lines if line[:1] != "-")
    assert text.count(old) == 1, f"the recipe's place is not in the file once:\n{old}"
    return text.replace(old, new)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package, and the data beside it as links."""
    shutil.copytree(
        REPOSITORY / "simserve", tmp_path / "simserve", ignore=shutil.ignore_patterns("__pycache__", "_data")
    )
    (tmp_path / "kernels_profile").mkdir()
    for path in (REPOSITORY / "kernels_profile").iterdir():
        (tmp_path / "kernels_profile" / path.name).symlink_to(path)
    for name in ("scenarios", "traces"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    return tmp_path


@pytest.mark.parametrize("title", RECIPES)
def test_it_works(title: str, copy: Path) -> None:
    if title == "A kernel to measure":
        pytest.importorskip("torch")
    printed = []
    for block in blocks(RECIPES[title]):
        path = copy / block.file
        if block.language == "console":
            printed += [run(line.removeprefix("$ "), copy) for line in block.text.splitlines()]
        elif block.language == "diff":
            path.write_text(changed(path.read_text(encoding="utf-8"), block.text), encoding="utf-8")
        else:
            assert block.file, f"no file is named before\n{block.text}"
            assert not path.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    page = copy / "out" / "report.html"
    said = "\n".join([*printed, page.read_text(encoding="utf-8") if page.exists() else ""])
    assert SHOWN[title] in said
    if title == "A section of the report":
        assert '<h2 id="sizes">Tokens per request</h2>' in said


def run(command: str, folder: Path) -> str:
    program, *args = shlex.split(command)
    assert program == "simserve"
    done = subprocess.run(
        [sys.executable, "-m", "simserve", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "100"},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 3), done.stderr + done.stdout  # 3: sixty requests may look unstable
    return done.stdout + done.stderr


def test_nothing_is_left_out() -> None:
    assert RECIPES.keys() == SHOWN.keys()


def test_code_of_recipes_is_as_tidy_as_ours(tmp_path: Path) -> None:
    for recipe in RECIPES.values():
        for block in blocks(recipe):
            if block.language == "python":
                (tmp_path / Path(block.file).name).write_text(block.text, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff"]
    ours = "lint.isort.known-first-party=['simserve']"  # a recipe imports the file of another block
    config = ["--config", str(REPOSITORY / "pyproject.toml"), "--config", ours, str(tmp_path)]
    for args in (["check", *config], ["format", "--check", *config]):
        done = subprocess.run([*ruff, *args], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
