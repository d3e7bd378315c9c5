"""`simserve validate`: how far the simulator can be trusted, shown on recordings of real systems."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.help import App, Group
from simserve.cli.validate import runs
from simserve.errors import UserError

if TYPE_CHECKING:
    from simserve.validation.golden import Comparison, LogRefused


class _Validate(Group):
    """Points those who want a scenario checked to the command for that."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0].endswith((".yaml", ".yml")):
            raise UserError(
                "validate compares simserve with recordings of real systems; "
                f"to check a scenario: {shlex.join(['simserve', 'run', args[0], '--check'])}"
            )
        return super().resolve_command(ctx, args)


app = App(
    cls=_Validate,
    no_args_is_help=True,
    epilog="Example: simserve validate golden tests/conformance",
)


@app.callback()
def validate() -> None:
    """Compare the simulator with recordings of real systems."""


app.command()(runs.measured)
app.command()(runs.published)
app.command()(runs.memory)


@app.command()
def golden(
    place: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of logs, searched in depth; or a log.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Replay step-by-step logs of real vLLM and SGLang schedulers through the policies.

    Engine, version and settings are read from each log. Logs with events that a replay
    cannot follow are refused. Exit codes: 3 if any step differs, otherwise 2 if any log was refused.

    Example: simserve validate golden tests/conformance
    """
    from simserve.validation.golden_folder import logs_in

    logs, others = logs_in(place)
    if others:
        print(f"{len(others)} JSON-lines files are not scheduling logs: {others[0]} ...", file=sys.stderr)
    compared, refused = _replays(logs, place, quiet)
    if as_json:
        print(json.dumps(_facts(compared, refused), indent=2))
    else:
        from simserve.cli.validate.tables import print_golden

        print_golden(compared, refused)
    if not all(comparison.equal for _, comparison in compared):
        raise typer.Exit(3)
    if refused:
        raise typer.Exit(2)


def _replays(
    logs: list[Path], place: Path, quiet: bool
) -> tuple[list[tuple[str, Comparison]], list[tuple[str, LogRefused]]]:
    """Replay the logs one after the other, with a progress bar for people; return those refused apart.

    A log that was asked for by itself is refused by raising LogRefused.
    """
    from rich.console import Console
    from rich.progress import track

    from simserve.validation.golden import LogRefused
    from simserve.validation.golden_folder import replay

    hidden = quiet or not sys.stderr.isatty()
    console = Console(stderr=True)
    compared: list[tuple[str, Comparison]] = []
    refused: list[tuple[str, LogRefused]] = []
    for path in track(logs, "replaying", console=console, transient=True, disable=hidden):
        try:
            compared.append((_name(path, place), replay(path)))
        except LogRefused as reason:
            if path == place:
                raise
            refused.append((_name(path, place), reason))
    return compared, refused


def _name(path: Path, place: Path) -> str:
    """Return a log's path as seen from the folder that was asked for."""
    return path.name if path == place else path.relative_to(place).as_posix()


def _facts(compared: list[tuple[str, Comparison]], refused: list[tuple[str, LogRefused]]) -> dict[str, Any]:
    facts: dict[str, Any] = {
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
    if refused:
        facts["refused"] = [{"file": name, "keys": why.keys} for name, why in refused]
    return facts


def _difference(comparison: Comparison) -> dict[str, Any] | None:
    first = comparison.first_difference
    return first and {"step": first.step, "ours": first.ours, "theirs": first.theirs}
