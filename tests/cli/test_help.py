"""Help, version and schema: quick, complete, and without the heavy libraries."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import typer

import simserve as package
from simserve.cli import app

Call = Callable[..., Any]


def test_help_names_every_command_and_exit_code(simserve: Call) -> None:
    done = simserve("--help")
    assert done.exit_code == 0
    for word in ("run", "report", "schema", "trace", "models", "gpus", "profile", "Exit codes", "130"):
        assert word in done.stdout


def test_run_help_has_examples(simserve: Call) -> None:
    done = simserve("run", "--help")
    assert "simserve run scenarios/demo.yaml" in done.stdout
    assert "Exit codes" in done.stdout


def test_version(simserve: Call) -> None:
    assert simserve("--version").stdout == f"simserve {package.__version__}\n"


def test_importing_the_command_line_is_cheap() -> None:
    code = "import sys, simserve.cli; print(*sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {"pandas", "numpy", "plotly", "simpy", "pyarrow", "pydantic", "jinja2", "scipy"}
    assert heavy & set(modules.split()) == set()


def test_schema_describes_every_key(simserve: Call) -> None:
    done = simserve("schema")
    schema = json.loads(done.stdout)
    top = schema["properties"]
    for key in ("name", "model", "engine", "workload", "pools", "router", "slo", "seed", "profiles"):
        assert key in top
    engine = schema["$defs"]["EngineSpec"]["anyOf"][1]["properties"]
    assert engine["max_num_batched_tokens"]["description"]
    assert "vllm-0.33" in engine["preset"]["examples"]
    assert schema["$defs"]["PoolSpec"]["properties"]["tp"]["description"]


@pytest.mark.parametrize(
    ("command", "extra"),
    [("search", "pip install -e '.[search]'"), ("report", "pip install -e '.[figures]'")],
)
def test_help_keeps_the_brackets_of_extras(command: str, extra: str, simserve: Call) -> None:
    words = simserve(command, "--help").stdout.replace("│", " ").split()
    assert extra in " ".join(words)


def test_validate_points_to_the_check_of_a_scenario(simserve: Call) -> None:
    done = simserve("validate", "my service.yaml")
    assert done.exit_code == 2
    assert "simserve run 'my service.yaml' --check" in done.stderr


def every_command(group: Any = None, *path: str) -> list[tuple[str, ...]]:
    group = group or typer.main.get_group(app)
    context = typer.Context(group)
    found = [path]
    for name in group.list_commands(context) if hasattr(group, "list_commands") else ():
        one = group.get_command(context, name)
        loaded = one.make_context(name, ["--help"], parent=context, resilient_parsing=True).command
        found += every_command(loaded, *path, name)
    return found


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_values_have_plain_names_and_flags_none(command: tuple[str, ...], simserve: Call) -> None:
    text = simserve(*command, "--help").stdout
    assert f"{' '.join(('root', *command))} [OPTIONS]" in text
    assert not re.search(
        r"<(bool|str|int|float|path|list)\b|[{]\w+[}]|\[\[|--no-(?!cache|advice)|  [|]", text
    )
    description = text.partition("Usage:")[2].partition("─")[0].strip().splitlines()
    assert any(line.strip() for line in description[1:]), "says what it does"


@pytest.mark.parametrize("command", ["trace", "models", "gpus", "profile", "init"])
def test_examples_stand_on_lines_of_their_own(command: str, simserve: Call) -> None:
    lines = [line.strip() for line in simserve(command, "--help").stdout.splitlines()]
    assert any(line.startswith(f"simserve {command}") for line in lines)
    assert not any("|  simserve" in line for line in lines)
