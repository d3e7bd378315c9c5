"""`python -m simserve.cli.reference [FOLDER]`: writes the reference pages (docs/reference)."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from typer.cli import get_docs_for_click

from simserve.cli import app
from simserve.cli.reference_names import names_reference
from simserve.scenario.reference import scenario_reference


def cli_reference() -> str:
    """Return every command with its arguments, options and examples, as Markdown."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="simserve")
    text = get_docs_for_click(obj=group, ctx=context, name="simserve", title="Every command")
    text = text.replace("\\[", "[")  # brackets that the terminal's markup would take
    made = "Made from `simserve COMMAND --help`: `make reference`."
    head, _, rest = text.partition("\n")
    return "\n".join(line.rstrip() for line in f"{head}\n\n{made}\n{rest}".splitlines()).rstrip() + "\n"


PAGES = {"scenario.md": scenario_reference, "cli.md": cli_reference, "names.md": names_reference}


def main() -> None:
    """Write all pages into a folder."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference")
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
