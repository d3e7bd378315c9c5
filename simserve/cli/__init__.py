"""The command line: `simserve run FILE` and its siblings.

Importing this package must stay cheap (`simserve --help` answers at once), so commands import what they
need when they run, and sub-commands are loaded when they are called. Errors become one line and an exit
code here and nowhere else.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperCommand

from simserve.cli import calibrate, capacity, compare, help, init, report, run, search, size, sweep, writing
from simserve.cli.help import App, Group
from simserve.errors import UserError

EXIT_CODES = (
    "Exit codes: 0 done; 1 an internal error; 2 the input is wrong (one line per problem); 3 done, "
    "but read stderr (nothing completed, unstable, SLO not met with --fail-on-slo); "
    "130 interrupted; 143 terminated"
)

SUB_APPS = {
    "trace": "Look at, convert, generate and fetch request traces.",
    "models": "Models that ship, their shapes, weights and KV bytes per token.",
    "gpus": "GPUs that ship, their vendor figures and kernel profiles.",
    "profile": "Kernel profiles: show, import and check measured latencies.",
    "validate": "Compare the simulator with recordings of real systems.",
}
"""Sub-command to its help; the typer app is `simserve.cli.<name>:app`."""


class _Later(TyperCommand):
    """Stands for a sub-command in the list of commands, and loads it when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        parts = typer.Typer(add_completion=False)
        parts.add_typer(importlib.import_module(f"simserve.cli.{self.name}").app, name=self.name)
        group = typer.main.get_group(parts)
        return group.commands[str(self.name)].make_context(info_name, args, parent=parent, **extra)


class _Root(Group):
    """Adds the sub-commands and turns exceptions into a line on stderr and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *SUB_APPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in SUB_APPS:
            return _Later(cmd_name, help=SUB_APPS[cmd_name])
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            with writing.raised():
                return super().invoke(ctx)
        except UserError as error:
            _say(str(error))
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            _say(writing.words(error))
            raise typer.Exit(writing.exit_code(error)) from error
        except BrokenPipeError as error:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - the interpreter flushes it at exit
            raise typer.Exit(0) from error
        except Exception as error:
            if _is_control_flow(error):
                raise
            _say_broken(error, debug=bool(ctx.params.get("debug")))
            raise typer.Exit(1) from error


def _is_control_flow(error: Exception) -> bool:
    """True for typer's own exceptions (Exit, Abort, usage errors), which it handles itself."""
    return type(error).__module__.startswith(("typer", "click"))


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _say_broken(error: Exception, debug: bool) -> None:
    if debug or os.environ.get("SIMSERVE_DEBUG") == "1":
        traceback.print_exception(error)
        return
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    _say(f"internal error (a bug in simserve): {what} (run with --debug for the traceback)")


app = App(
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from simserve import __version__

        print(f"simserve {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Print tracebacks (also: SIMSERVE_DEBUG=1)."),
) -> None:
    """Simulate an LLM serving system: replay a trace on any model, engine and GPUs you name.

    No GPU is needed.

    Start with: simserve run scenarios/demo.yaml
    """


app.command("init")(init.init)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("schema")(help.schema)
app.command("calibrate")(calibrate.calibrate)
app.command("sweep")(sweep.sweep)
app.command("capacity")(capacity.capacity)
app.command("size")(size.size)
app.command("search")(search.search)
