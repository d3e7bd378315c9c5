"""`simserve profile`: what kernel measurements there are, and how to bring in more."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli import completion
from simserve.cli.help import App
from simserve.cli.models.steps import print_parts
from simserve.cli.profile import files, run
from simserve.cli.writing import refuse_to_overwrite

if TYPE_CHECKING:
    from simserve.latency import ProfileStore
    from simserve.latency.tables.profiles import ProfileTable


app = App(
    help="Kernel latencies: show, import, measure and check them, and see what a step is made of.",
    no_args_is_help=True,
    epilog="Examples:"
    "\n\nsimserve profile show h100_sxm"
    "\n\nsimserve profile import aiconfigurator installed --out my_profiles --gpu b300_sxm",
)

Profiles = Annotated[
    list[Path], typer.Option("--profiles", help="Folder searched before what ships; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@app.command()
def show(
    gpu: Annotated[str, typer.Argument(autocompletion=completion.gpus, help="GPU whose tables to list.")],
    profiles: Profiles = [],  # noqa: B006
    html: Annotated[
        Path | None, typer.Option(help="Also write a page with heat maps of efficiency to this file.")
    ] = None,
    as_json: AsJson = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page if it exists.")] = False,
) -> None:
    """Show what was measured on a GPU: operations, dtypes, ranges, backends, rows left out.

    Examples:

    simserve profile show h100_sxm

    simserve profile show h100_sxm --html h100.html
    """
    from simserve.errors import ProfileError, nearest
    from simserve.latency import ProfileStore

    refuse_to_overwrite(html, force)
    store = ProfileStore(profiles)
    if gpu not in store.gpus():
        known = store.gpus()
        raise ProfileError(
            f"no kernel profiles of GPU {gpu!r}{nearest(gpu, known)}; there are {', '.join(known)}"
        )
    tables = [(op, store.table(gpu, op)) for op in store.ops(gpu)]
    rows = [_coverage(op, table) for op, table in tables if table is not None]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _print(gpu, rows)
    if html is not None:
        _write_page(gpu, store, rows, profiles, html)


def _write_page(
    gpu: str, store: ProfileStore, rows: list[dict[str, Any]], profiles: list[Path], html: Path
) -> None:
    from simserve.hardware import load_gpu
    from simserve.latency.tables.coverage import heat_maps
    from simserve.report.profile_page import write_profile_page

    maps = [one._asdict() for one in heat_maps(load_gpu(gpu, profiles), store)]
    searched = [part for folder in profiles for part in ("--profiles", str(folder))]
    command = shlex.join(["simserve", "profile", "show", gpu, *searched, "--html", str(html)])
    write_profile_page(gpu, [_in_words(row) for row in rows], maps, command, html)
    print(html, file=sys.stderr)


@app.command()
def step(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.models,
            help="A preset, a Hugging Face name, or the path of a config.json.",
        ),
    ],
    gpu: Annotated[str, typer.Argument(autocompletion=completion.gpus, help="GPU, as in a scenario.")],
    decodes: Annotated[int, typer.Option(help="Sequences that decode one token each.")] = 0,
    context: Annotated[int, typer.Option(help="Mean context of these sequences, in tokens.")] = 1024,
    prefill: Annotated[int, typer.Option(help="New tokens of one prompt chunk.")] = 0,
    cached: Annotated[int, typer.Option(help="Tokens of that prompt that are cached.")] = 0,
    tp: Annotated[int, typer.Option(help="Tensor parallelism.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option(help="Data-parallel attention ranks; the step is one rank's.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert parallelism.")] = 1,
    weights_dtype: Annotated[str, typer.Option(help="Type of the weights.")] = "bf16",
    kv_dtype: Annotated[str, typer.Option(help="Type of the KV cache.")] = "bf16",
    overhead: Annotated[str, typer.Option(help="Engine overhead: ideal, vllm or sglang.")] = "ideal",
    profiles: Profiles = [],  # noqa: B006
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where the time of one engine step goes, kernel by kernel, and where each figure comes from.

    Example: simserve profile step llama-3.1-70b h100_sxm --tp 4 --decodes 64 --context 2048
    """
    from simserve.core import Chunk, Request
    from simserve.engines.overheads import overhead_named
    from simserve.errors import ScenarioError
    from simserve.hardware import load_gpu
    from simserve.latency import ProfileStore, compile_step_latency, explain_step
    from simserve.model import Parallelism, load_model

    if decodes <= 0 and prefill <= 0:
        raise ScenarioError("a step needs --decodes or --prefill")
    latency = compile_step_latency(
        load_model(model),
        load_gpu(gpu, profiles),
        Parallelism(tp, pp, dp, ep),
        weights_dtype=weights_dtype,
        kv_dtype=kv_dtype,
        overhead=overhead_named(overhead),
        profiles=ProfileStore(profiles),
    )
    chunks = [Chunk(Request(0, 0, prefill, 1), prefill, cached, True)] if prefill else []
    parts = explain_step(latency, decodes, decodes * context, chunks)
    if as_json:
        print(
            json.dumps(
                {"parts": [part._asdict() for part in parts], "estimated": latency.estimated}, indent=2
            )
        )
    else:
        print_parts(parts, markdown)
        for note in latency.estimated:
            print(note, file=sys.stderr)


app.command("run")(run.run)
app.command("check")(files.check)
app.add_typer(files.app, name="import")


def _coverage(op: str, table: ProfileTable) -> dict[str, Any]:
    """Return what a table covers: values of its text keys, ranges of its numeric ones, its origin."""
    about = table.about
    keys = [key for key in about["key_columns"] if key != "prefix_len"]
    values = {key: table.values(key) for key in keys}
    return {
        "op": op,
        "rows": len(table),
        "left_out": table.dropped + about.get("left_out", {}).get("rows", 0),
        "keys": {
            key: found if _short(found) else [found[0], "..", found[-1]] for key, found in values.items()
        },
        "backends": sorted(
            {*zip(*(table.column(n).tolist() for n in ("backend", "backend_version")), strict=True)}
        ),
        "sources": about.get("sources", {}),
    }


def _short(values: list[Any]) -> bool:
    return bool(values) and (isinstance(values[0], str) or len(values) <= 6)


def _print(gpu: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from simserve.cli.terminal import FittedTable

    table = FittedTable(title=f"Kernel profiles of {gpu}")
    table.add_column("operation", no_wrap=True)
    for title in ("rows", "left out"):
        table.add_column(title, justify="right")
    for title in ("covered", "measured in"):
        table.add_column(title)
    for row in rows:
        words = _in_words(row)
        table.add_row(row["op"], str(row["rows"]), str(row["left_out"]), words["covered"], words["backends"])
    Console().print(table)
    sources = {source for row in rows for source in _in_words(row)["sources"]}
    Console().print("Source: " + "; ".join(sorted(sources)), highlight=False)


def _in_words(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `_coverage` with its ranges, backends and sources as text."""
    return {
        "op": row["op"],
        "rows": row["rows"],
        "left_out": row["left_out"],
        "covered": "; ".join(f"{key} {_text(values)}" for key, values in row["keys"].items()),
        "backends": ", ".join(f"{name} {version}" for name, version in row["backends"]),
        "sources": sorted(f"{it['name']} {it['version']}, {it['licence']}" for it in row["sources"].values()),
    }


def _text(values: list[Any]) -> str:
    if len(values) == 3 and values[1] == "..":
        return f"{values[0]}..{values[2]}"
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
