"""`simserve calibrate`: fit the engine's named overhead constants to measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simserve.cli.validate.tables import Profiles
from simserve.cli.writing import refuse_to_overwrite

DEFAULT_TERMS = ["client_us"]


def calibrate(
    measured: Annotated[Path, typer.Option(help="Folder of measured runs, or a table of published ones.")],
    only: Annotated[list[str], typer.Option(help="Runs to fit, by a part of their id; repeatable.")],
    out: Annotated[Path, typer.Option(help="File to write; a scenario cites it as engine.overhead.")],
    fit: Annotated[
        list[str] | None,
        typer.Option(
            help="Constants to fit: client_us (default), gap_us, saved_us, step_us, sequence_us, request_us."
        ),
    ] = None,
    base: Annotated[
        str, typer.Option(help="Engine whose constants to start from: vllm, sglang, ideal.")
    ] = "vllm",
    profiles: Profiles = [],  # noqa: B006
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Fit an engine's overhead constants by least squares; write them with intervals and held-out errors.

    Fitted runs no longer count as validation. Refuses to fit more constants than the runs can tell apart.

    Example: simserve calibrate --measured path/to/vllm_measured --only 7b-tp1-codegen --out vllm-0.15.yaml
    """
    from simserve.validation.calibration import calibrate as fitted
    from simserve.validation.measured_runs import read_runs
    from simserve.validation.published import read_published_runs

    refuse_to_overwrite(out, force)
    runs = read_published_runs(measured, only) if measured.suffix == ".csv" else read_runs(measured, only)
    typer.echo(f"fitting {', '.join(fit or DEFAULT_TERMS)} to {len(runs)} runs ...", err=True)
    found = fitted(runs, fit or DEFAULT_TERMS, base, [str(folder) for folder in profiles])
    out.write_text(found.yaml(), encoding="utf-8")
    for name, left, was in zip(found.observations, found.after, found.before, strict=True):
        typer.echo(f"{name}: {100 * was:+.1f} % before, {100 * left:+.1f} % after", err=True)
    for name, worst in found.held_out.items():
        typer.echo(f"{name}: {100 * worst:.1f} % at worst when held out", err=True)
    typer.echo(out.read_text(encoding="utf-8"))
    typer.echo(f"written: {out}", err=True)
