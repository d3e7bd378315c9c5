"""What `--help` looks like: plain words for the types of values, no braces, no type beside a flag."""

from __future__ import annotations

import json
import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# `simserve schema`: the JSON Schema of scenario files, for completion and checks in editors.


def schema() -> None:
    """Print the JSON Schema of scenario files.

    Example, for editors that use the YAML language server: simserve schema > scenario.schema.json
    and put this on the scenario's first line: # yaml-language-server: $schema=scenario.schema.json
    """
    from simserve.scenario.reference import scenario_schema

    print(json.dumps(scenario_schema(), indent=2))


WORDS = {
    "<str>": "TEXT",
    "<int>": "N",
    "<int range>": "N",
    "<float>": "NUMBER",
    "<float range>": "NUMBER",
    "<path>": "PATH",
    "<list[str]>": "TEXT",
    "<list[Path]>": "PATH",
}
"""What typer writes for a type to what people read; types that are not here stay."""


class _Plain:
    """The parts of typer's commands and groups that write their help."""

    help: str | None

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.help = _flowing(self.help)

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for param in params:
            if param.param_type_name == "argument":
                param.metavar = param.metavar or param.name.upper()
                param.display_type_rich = _no_type
            elif param.metavar is None:
                param.metavar = "" if param.is_flag else WORDS.get(param.display_type(ctx))
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        return [re.sub(r"\{(.*)\}", r"\1", piece) for piece in pieces]


def _no_type(ctx: Any) -> str:
    """The name and the help of an argument say what it is."""
    return ""


def _flowing(help: str | None) -> str | None:
    """Return a help without the line breaks inside its paragraphs: the terminal's width decides."""
    return help and "\n\n".join(" ".join(one.split()) for one in help.strip().split("\n\n"))


class Command(_Plain, TyperCommand):
    """A command."""


class Group(_Plain, TyperGroup):
    """A group of commands."""


class App(typer.Typer):
    """A typer app of such commands."""

    def __init__(self, *, cls: type[TyperGroup] = Group, **settings: Any) -> None:
        super().__init__(cls=cls, context_settings={"help_option_names": ["-h", "--help"]}, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """Register a command, as typer does."""
        return super().command(name, cls=Command, **settings)
