"""`simserve validate`: how far the simulator can be trusted, shown on recordings of real systems."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli import validate_measured, validate_published

if TYPE_CHECKING:
    from simserve.validate.golden import Comparison

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  simserve validate golden tests/conformance",
)


@app.callback()
def validate() -> None:
    """Compare the simulator with recordings of real systems."""


app.command()(validate_measured.measured)
app.command()(validate_published.published)


@app.command()
def golden(
    place: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of logs, searched in depth; or a log.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Replay step-by-step logs of real vLLM and SGLang schedulers through the policies.

    Engine, version and settings are read from each log. Ends with 3 if any step differs.

    Example: simserve validate golden tests/conformance
    """
    from simserve.validate.golden_folder import logs_in

    logs, others = logs_in(place)
    if others:
        print(f"{len(others)} JSON-lines files are no scheduling logs: {others[0]} ...", file=sys.stderr)
    compared = [(_name(path, place), comparison) for path, comparison in _replays(logs, quiet)]
    if as_json:
        print(json.dumps(_facts(compared), indent=2))
    else:
        from simserve.cli.validate_text import print_golden

        print_golden(compared)
    if not all(comparison.equal for _, comparison in compared):
        raise typer.Exit(3)


def _replays(logs: list[Path], quiet: bool) -> list[tuple[Path, Comparison]]:
    """Replay the logs one after the other, with a progress bar for people."""
    from rich.console import Console
    from rich.progress import track

    from simserve.validate.golden_folder import replay

    hidden = quiet or not sys.stderr.isatty()
    console = Console(stderr=True)
    watched = track(logs, "replaying", console=console, transient=True, disable=hidden)
    return [(path, replay(path)) for path in watched]


def _name(path: Path, place: Path) -> str:
    """Return a log's path as seen from the folder that was asked for."""
    return path.name if path == place else path.relative_to(place).as_posix()


def _facts(compared: list[tuple[str, Comparison]]) -> dict[str, Any]:
    return {
        "files": len(compared),
        "steps": sum(comparison.steps for _, comparison in compared),
        "steps_equal": sum(comparison.steps_equal for _, comparison in compared),
        "by_file": [
            {
                "file": name,
                "steps": comparison.steps,
                "steps_equal": comparison.steps_equal,
                "first_difference": _difference(comparison),
            }
            for name, comparison in compared
        ],
    }


def _difference(comparison: Comparison) -> dict[str, Any] | None:
    first = comparison.first_difference
    return first and {"step": first.step, "ours": first.ours, "theirs": first.theirs}
