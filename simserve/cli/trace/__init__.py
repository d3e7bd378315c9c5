"""`simserve trace`: look at, convert, generate and fetch request traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.help import App
from simserve.cli.writing import refuse_to_overwrite
from simserve.core import Trace
from simserve.errors import TraceError

if TYPE_CHECKING:
    from simserve.workload import SyntheticSpec


# A trace from a trace file, or from what a load generator measured.


def any_trace(name: str, format: str, options: dict[str, Any]) -> Trace:
    """Return the trace that `name` holds; what is no trace is read as measurements.

    Raises `TraceError`, of the trace formats if the file is of no known kind.
    """
    from simserve.validation.loadtests.base import IMPORTERS
    from simserve.workload import load_trace

    if format in IMPORTERS or (format == "auto" and _is_measured(name)):
        return _measured(name, format, options)
    return load_trace(Path(name), format, **options)


def measured_notes(trace: Trace) -> tuple[str, ...]:
    """Return what was assumed and changed where the reader chose among a file's words."""
    from simserve.validation.loadtests.base import IMPORTERS

    origin = trace.origin
    noted = (*IMPORTERS.names(), "columns")
    return (*origin.assumptions, *origin.changes) if origin.format in noted else ()


def _is_measured(name: str) -> bool:
    """Return whether a file is no trace, but measurements of a known format."""
    from simserve.validation.loadtests.json_file import JsonFile
    from simserve.validation.loadtests.read import file_of, sniff
    from simserve.workload.formats.base import READERS
    from simserve.workload.load import FALLBACK

    try:
        file = JsonFile(file_of(name)[0])
        if any(READERS.get(one)().sniff(file.trace_file) for one in READERS if one != FALLBACK):
            return False
        sniff(file)
    except TraceError:
        return False  # the trace formats say what is wrong with it
    return True


def _measured(name: str, format: str, options: dict[str, Any]) -> Trace:
    from pydantic import ValidationError

    from simserve.validation.load_test import MeasuredOptions, trace_of
    from simserve.validation.loadtests.json_file import JsonFile
    from simserve.validation.loadtests.read import file_of, read_load_test

    test = read_load_test(name, format)
    try:
        checked = MeasuredOptions(**options)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{name}: option {place} of format {test.format}: {first['msg']}") from error
    return trace_of(test, JsonFile(file_of(name)[0]).trace_file, checked)


app = App(
    no_args_is_help=True,
    epilog="Examples:"
    "\n\nsimserve trace show traces/chat.csv.gz"
    "\n\nsimserve trace synth chat my.csv.gz --seed 7"
    "\n\nsimserve trace convert my.jsonl my.parquet"
    "\n\nsimserve trace fetch azure-2023-conv",
)


@app.callback()
def trace() -> None:
    """Look at, convert, generate and fetch request traces."""


Format = Annotated[
    str, typer.Option("--format", "-f", help="Format of the trace; auto looks at its content.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="Option of the format, KEY=VALUE (YAML value); may be repeated."),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        help="Which column is which: arrival=ts,prompt_tokens=in,output_tokens=out (and session ...).",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]


@app.command()
def show(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Trace file, gzip or not; or a result of a load generator.")
    ],
    format: Format = "auto",
    option: Options = None,
    columns: Columns = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with pictures to this file.")] = None,
    cache: Annotated[bool, typer.Option("--cache", help="Also show prefix hits against cache size.")] = False,
    cache_block: Annotated[
        int | None, typer.Option(min=1, help="Tokens per cache block, for --cache; default: the trace's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    force: Force = False,
) -> None:
    """Show a trace: lengths, arrivals, prefix reuse, and what its reader assumed.

    Examples:

    simserve trace show traces/long_context.jsonl.gz --html long.html

    simserve trace show traces/long_context.jsonl.gz --cache

    simserve trace show lengths.csv -o "arrivals={kind: poisson, rate_per_s: 2}"
    """
    from simserve.cli.trace import any_trace
    from simserve.cli.trace.tables import print_cache, print_json, print_stats
    from simserve.workload import stats
    from simserve.workload.cache_curve import prefix_reuse

    refuse_to_overwrite(html, force)
    if cache_block is not None and not cache:
        raise TraceError("--cache-block is for --cache: add it")
    loaded = any_trace(path, format, _options(option, columns))
    figures = stats(loaded)
    reuse = prefix_reuse(loaded, cache_block) if cache else None
    curve = reuse.curve(reuse.round_capacities()) if reuse else None
    if as_json:
        print_json(loaded, figures, curve)
    else:
        print_stats(loaded, figures)
        if curve is not None:
            print_cache(curve)
    if html is not None:
        from simserve.report.trace_page import write_trace_page

        shown = figures.to_dict()
        if reuse is not None and curve is not None:
            shown["cache"] = curve.to_dict()
            shown["cache_line"] = reuse.curve(reuse.fine_capacities()).to_dict()
        write_trace_page(loaded, shown, html)
        _wrote(html)


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="Trace file, or a result of a load generator, to read.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; .gz compresses.")],
    from_format: Annotated[
        str, typer.Option("--from", help="Format of IN; auto looks at its content.")
    ] = "auto",
    to_format: Annotated[
        str | None, typer.Option("--to", help="azure, mooncake, vidur or plain; default by OUT's ending.")
    ] = None,
    option: Options = None,
    columns: Columns = None,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Drop what the format cannot hold, and say what.")
    ] = False,
    force: Force = False,
) -> None:
    """Convert a trace to another format; refuse to drop anything, unless told to with --lossy.

    IN may be what vllm bench serve, SGLang's bench_serving, AIPerf, guidellm or inference-perf measured.

    Examples:

    simserve trace convert traces/chat.csv.gz chat.parquet

    simserve trace convert bench.json chat.csv.gz
    """
    from simserve.cli.trace import any_trace, measured_notes

    refuse_to_overwrite(target, force)
    found = any_trace(source, from_format, _options(option, columns))
    for note in measured_notes(found):
        typer.echo(f"{found.origin.name}: {note}", err=True)
    _write(found, target, to_format, lossy, force)


@app.command()
def synth(
    preset: Annotated[
        str | None, typer.Argument(metavar="PRESET", help="chat, code or long-context.")
    ] = None,
    out: Annotated[Path | None, typer.Argument(metavar="OUT", help="File to write; .gz compresses.")] = None,
    spec: Annotated[
        Path | None, typer.Option(help="YAML file with a specification, instead of PRESET.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; default: the preset's own, or 0.")] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Number of requests, instead of the preset's.")
    ] = None,
    to_format: Annotated[
        str | None, typer.Option("--to", help="azure, mooncake, vidur or plain; default by OUT's ending.")
    ] = None,
    force: Force = False,
) -> None:
    """Generate a trace from a preset or a specification; the same seed gives the same trace.

    Examples:

    simserve trace synth chat my-chat.csv.gz --requests 500 --seed 7

    simserve trace synth --spec my-workload.yaml my.jsonl.gz
    """
    from simserve.workload import synthesize
    from simserve.workload.synthetic.spec import preset as find_preset

    if spec is not None:
        if out is not None:
            raise TraceError(f"give either a preset or --spec, not both ({preset} and {spec})")
        preset, out = None, None if preset is None else Path(preset)
    if out is None or (preset is None and spec is None):
        raise TraceError(
            "a preset (chat, code, long-context) or --spec FILE, and a file to write, are needed"
        )
    refuse_to_overwrite(out, force)
    if spec is not None:
        wanted, own_seed, own_format = read_spec(spec), 0, None
    else:
        chosen = find_preset(str(preset))
        wanted, own_seed, own_format = chosen.spec, chosen.seed, chosen.format
        own_format = own_format if _fits(out, own_format) else None
    if requests is not None:
        wanted = wanted.model_copy(update={"requests": requests, "duration_s": None})
    trace = synthesize(wanted, own_seed if seed is None else seed)
    _write(trace, out, to_format or own_format, lossy=False, force=force)


@app.command()
def fetch(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Public trace; without it, all are listed.")
    ] = None,
    to: Annotated[Path, typer.Option("--to", help="Folder to put it in.")] = Path(),
    force: Force = False,
) -> None:
    """Download a public trace from its home and check its hash; third-party data: check its licence.

    Example: simserve trace fetch mooncake-conversation --to traces
    """
    from simserve.workload.catalogue import CATALOGUE
    from simserve.workload.catalogue import fetch as download

    if name is None:
        from simserve.cli.trace.tables import print_catalogue

        print_catalogue(CATALOGUE)
        return
    path = download(name, to, force)
    print(f"{path}: {CATALOGUE[name].about}; licence {CATALOGUE[name].licence}")


def read_spec(path: Path) -> SyntheticSpec:
    """Read a `SyntheticSpec` from YAML (the mapping, or a scenario's `workload.synthetic`)."""
    from pydantic import ValidationError

    from simserve.workload import SyntheticSpec

    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    plain = _yaml(path.read_text(encoding="utf-8"), str(path))
    try:
        return SyntheticSpec.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the specification"
        raise TraceError(f"{path}: {place}: {first['msg']}") from error


def _options(pairs: list[str] | None, columns: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in columns.split(",") if columns else []:
        role, equals, name = pair.partition("=")
        if not (role.strip() and equals and name.strip()):
            raise TraceError(f"--columns {pair!r} is not ROLE=COLUMN, such as arrival=timestamp")
        options.setdefault("columns", {})[role.strip()] = name.strip()
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise TraceError(f"option {pair!r} is not KEY=VALUE")
        options[key.strip()] = _yaml(value, f"option {key}")
    return options


def _yaml(text: str, place: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(text)
    except YAMLError as error:
        raise TraceError(f"{place}: not YAML: {' '.join(str(error).split())}") from error


def _write(trace: Trace, target: Path, format: str | None, lossy: bool, force: bool) -> None:
    from simserve.workload.load import format_of, write_trace

    for loss in write_trace(trace, target, format or format_of(target), lossy=lossy, force=force):
        typer.echo(f"left out: {loss}", err=True)
    _wrote(target, f": {len(trace):,} requests")


def _fits(path: Path, format: str) -> bool:
    from simserve.workload.formats.base import WRITERS

    return path.name.removesuffix(".gz").endswith(WRITERS.get(format).suffixes)


def _wrote(path: Path, what: str = "") -> None:
    print(f"wrote {path}{what}")
