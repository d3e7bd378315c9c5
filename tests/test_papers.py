"""The papers at the top of the repository: complete, consistent, and in the wheel."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import simserve

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_licence_is_the_whole_of_what_pyproject_names() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    licence = text("LICENSE")
    assert "Version 2.0, January 2004" in licence
    assert [int(number) for number in re.findall(r"^   (\d)\. ", licence, re.MULTILINE)] == list(range(1, 10))
    assert "END OF TERMS AND CONDITIONS" in licence


def test_the_wheel_takes_the_papers_along() -> None:
    assert {"LICENSE", "NOTICE"} <= set(PROJECT["project"]["license-files"])
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {"CHANGELOG.md", "CITATION.cff"} <= set(included)
    assert all((ROOT / name).exists() for name in [*PROJECT["project"]["license-files"], *included])
    assert (ROOT / "simserve" / "py.typed").is_file()


def test_one_version_everywhere() -> None:
    """It stands in simserve/__init__.py; the build reads it there, and the citation repeats it."""
    assert PROJECT["project"]["dynamic"] == ["version"]
    source = text(PROJECT["tool"]["hatch"]["version"]["path"])
    assert re.findall(r'^__version__ = "(.*)"$', source, re.MULTILINE) == [simserve.__version__]
    citation = YAML(typ="safe").load(text("CITATION.cff"))
    assert citation["version"] == simserve.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # what the format requires


def test_the_changelog_keeps_its_form() -> None:
    first, *others = re.findall(r"^## (.*)$", text("CHANGELOG.md"), re.MULTILINE)
    assert first == "Unreleased"
    assert any(one.startswith(simserve.__version__) for one in others)
    kinds = set(re.findall(r"^### (.*)$", text("CHANGELOG.md"), re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_map_names_files_that_exist() -> None:
    rows = [line for line in text("docs/how-it-works.md").splitlines() if line.startswith("|")]
    found = [name for row in rows for name in re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", row)]
    assert len(found) > 30
    assert [name for name in found if name != "simserve/" and not (ROOT / "simserve" / name).exists()] == []


def test_pythons_are_those_that_are_tested() -> None:
    """Classifiers, the workflow and requires-python name the same versions."""
    named = [one.rpartition(" ")[2] for one in PROJECT["project"]["classifiers"] if ":: 3." in one]
    workflow = YAML(typ="safe").load(text(".github/workflows/ci.yml"))
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["project"]["requires-python"] == f">={named[0]}"


def test_commits_are_checked_as_make_lint_does() -> None:
    hooks = YAML(typ="safe").load(text(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    called = {hook["entry"].removeprefix(".venv/bin/").split(" --")[0] for hook in hooks}
    assert called == {"ruff check", "ruff format", "pyright"}
    assert all(f"$(BIN)/{one}" in text("Makefile") for one in called)


def test_the_workflow_calls_what_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z]+):", text("Makefile"), re.MULTILINE))
    called = re.findall(r"run: make (\w+)", text(".github/workflows/ci.yml"))
    assert {"lint", "test", "docs"} == set(called) <= targets


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", "CHANGELOG.md", "SECURITY.md"])
def test_paths_that_are_named_exist(page: str) -> None:
    """Not the files that recipes write: a colon and a block follow those."""
    found = re.findall(r"`((?:simserve|tests|docs|kernels_profile)/[a-z_./-]*)`(?!:)", text(page))
    assert [name for name in found if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("folder", ["simserve", "docs"])
def test_nobody_is_told_to_install_from_an_index(folder: str) -> None:
    files = [path for ending in ("py", "md") for path in (ROOT / folder).rglob(f"*.{ending}")]
    assert [path.name for path in files if "'simserve[" in path.read_text(encoding="utf-8")] == []
