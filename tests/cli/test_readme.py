"""What the README shows works as it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from simserve.cli import app
from simserve.deploy.build import build_all
from simserve.deploy.engine import resolve_engine
from simserve.scenario import load_scenario

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_scenario_is_the_demo(tmp_path: Path) -> None:
    text, _ = blocks("yaml")
    (tmp_path / "readme.yaml").write_text(text)
    assert load_scenario(tmp_path / "readme.yaml").scenario == load_scenario("scenarios/demo.yaml").scenario


def test_the_variants_fit_the_demo(tmp_path: Path) -> None:
    (tmp_path / "readme.yaml").write_text("".join(blocks("yaml")))
    found = build_all(load_scenario(tmp_path / "readme.yaml"))
    assert list(found) == ["base", "big_steps", "two", "sglang"]
    assert found["big_steps"].pools[0].engine.options["max_num_batched_tokens"] == 16384


@pytest.mark.parametrize("text", re.findall(r"`engine: (\{preset[^`]*\})`", README))
def test_the_engine_options_exist(text: str) -> None:
    loaded = load_scenario("scenarios/demo.yaml", [f"engine={text}"])
    assert resolve_engine(loaded, 0, 80 << 30, 131_072).options["max_num_seqs"] == 256


def test_the_error_message_is_what_the_command_says(small: Path, simserve: Callable[..., Any]) -> None:
    (shown,) = re.findall(r"mine\.yaml:9: (pools.*?), \.\.\.", README)
    small.write_text(small.read_text().replace("gpu: h100_sxm", "gpu: h100_sxm, tpp: 2"))
    assert shown in simserve("run", small).stderr


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`simserve ([a-z]+)", README))))
def test_every_command_exists(simserve: Callable[..., Any], name: str) -> None:
    assert simserve(name, "--help").exit_code == 0


@pytest.mark.parametrize("link", re.findall(r"[^!]\[[^]]+\]\(([^)]+)\)", README))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link.partition("#")[0]).exists()


@pytest.mark.parametrize(
    "folder", sorted(set(re.findall(r"`((?:simserve|tests|kernels_profile)(?:/[a-z_/]*)?)`", README)))
)
def test_every_folder_exists(folder: str) -> None:
    assert (ROOT / folder).exists()


def test_the_demo_names_three_commands_that_work(simserve: Callable[..., Any]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r'@echo "  \$\(BIN\)/simserve (\w+)(?: (\S+\.yaml))? +#', makefile)
    assert [command for command, _ in commands] == ["init", "size", "run"]
    for command, file in commands:
        assert simserve(command, "--help").exit_code == 0
        assert not file or (ROOT / file).is_file()


def test_every_command_is_in_the_table() -> None:
    table = README.partition("| command | what it does |")[2].partition("\n\n")[0]
    group = typer.main.get_group(app)
    for name in group.list_commands(typer.Context(group)):
        assert f"`simserve {name}" in table, name
