"""`simserve profile import`: measurements made by others, turned into our tables.

A command per origin, because each takes something else and names its licence; the rest they share.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from simserve.cli.help import App
from simserve.cli.overwrite import refuse_to_overwrite

app = App(no_args_is_help=True, help="Import measurements made by others.")


_Out = Annotated[Path, typer.Option("--out", help="Folder to write <gpu>/<op>.parquet into.")]
_Gpu = Annotated[list[str], typer.Option("--gpu", help="GPU to import; may be repeated (default: all).")]
_Force = Annotated[bool, typer.Option("--force", help="Replace tables that exist.")]


@app.command()
def aiconfigurator(
    source: Annotated[
        str, typer.Argument(help="A wheel of aiconfigurator-core, an unpacked folder, or 'installed'.")
    ],
    out: _Out,
    gpu: _Gpu = [],  # noqa: B006
    force: _Force = False,
) -> None:
    """Import the kernel tables of aiconfigurator-core (Apache-2.0, NVIDIA CORPORATION & AFFILIATES).

    Example: simserve profile import aiconfigurator installed --out my_profiles --gpu h100_sxm
    """
    from simserve.latency.importing.aiconfigurator import import_aiconfigurator

    _import(out, force, import_aiconfigurator(source, out, list(gpu)))


@app.command()
def llmservingsim(
    source: Annotated[
        Path, typer.Argument(help="Folder of files such as rtx4090_llama-3.1-8b_tp1_attention.csv.gz.")
    ],
    out: _Out,
    gpu: _Gpu = [],  # noqa: B006
    force: _Force = False,
) -> None:
    """Import layer times of LLMServingSim's profiler (MIT): products and attention of one model and GPU each.

    Example: simserve profile import llmservingsim measurements --out my_profiles --gpu rtx_4090
    """
    from simserve.latency.importing.llmservingsim import import_llmservingsim

    _import(out, force, import_llmservingsim(source, out, list(gpu)))


def _import(out: Path, force: bool, tables: Iterable[tuple[str, str, int]]) -> None:
    """Let the importer write its tables, unless tables are there already; `tables` does nothing before."""
    refuse_to_overwrite(next(iter(sorted(out.glob("*/*.parquet"))), None), force)
    for name, op, rows in tables:
        print(f"{name}/{op}: {rows} rows", file=sys.stderr)
    print(out)
