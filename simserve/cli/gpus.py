"""`simserve gpus`: the GPUs that ship, and where each of their figures was read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli import completion
from simserve.cli.help import App

if TYPE_CHECKING:
    from simserve.hardware import Figure, GpuSpec
    from simserve.latency.tables.profiles import ProfileStore


app = App(
    invoke_without_command=True,
    epilog="Examples:"
    "\n\nsimserve gpus"
    "\n\nsimserve gpus show h200_sxm"
    "\n\nsimserve gpus show my_gpu --profiles my_profiles",
)

Profiles = Annotated[
    list[Path], typer.Option("--profiles", help="Folder with further <gpu>/gpu.json; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@app.callback()
def gpus(ctx: typer.Context, profiles: Profiles = [], as_json: AsJson = False) -> None:  # noqa: B006
    """List the GPUs; `show NAME` gives the source of every figure."""
    if ctx.invoked_subcommand:
        return
    from simserve.hardware import gpu_names, load_gpu
    from simserve.latency.tables.profiles import ProfileStore

    specs, store = [load_gpu(name, profiles) for name in gpu_names(profiles)], ProfileStore(profiles)
    if as_json:
        print(json.dumps([_facts(spec, store.ops(spec.name)) for spec in specs], indent=2))
    else:
        _print_table(specs, store)


@app.command()
def show(
    name: Annotated[str, typer.Argument(autocompletion=completion.gpus, help="GPU, as in a scenario.")],
    profiles: Profiles = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show one GPU: every figure with its source and date.

    Example: simserve gpus show h100_sxm
    """
    from simserve.hardware import load_gpu
    from simserve.latency.tables.profiles import ProfileStore

    spec = load_gpu(name, profiles)
    kernels = ProfileStore(profiles).ops(spec.name)
    if as_json:
        print(json.dumps(_facts(spec, kernels), indent=2))
    else:
        _print_gpu(spec, kernels)


def _facts(spec: GpuSpec, kernels: list[str]) -> dict[str, Any]:
    return {**spec.model_dump(mode="json", exclude_none=True), "kernels_measured": kernels}


def _print_table(specs: list[GpuSpec], store: ProfileStore) -> None:
    from rich import box
    from rich.console import Console

    from simserve.cli.terminal import FittedTable
    from simserve.units import GIB, TERA

    title = "GPUs (vendor figures, dense; link: NVLink or Infinity Fabric, one way)"
    table = FittedTable(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("name", no_wrap=True)
    for title in ("HBM GiB", "TB/s", "bf16 TFLOP/s", "fp8 TFLOP/s", "link GB/s", "FLOP/B bf16"):
        table.add_column(title, justify="right")
    table.add_column("kernels", no_wrap=True)
    for spec in specs:
        peaks = spec.peak_flops
        table.add_row(
            spec.name,
            f"{spec.hbm_bytes / GIB:.1f}",
            f"{spec.hbm_bytes_per_s / TERA:.2f}",
            f"{peaks['bf16'] / TERA:.0f}",
            f"{peaks['fp8'] / TERA:.0f}" if "fp8" in peaks else "-",
            f"{spec.nvlink_bytes_per_s / 1e9:.0f}" if spec.nvlink else "-",
            f"{spec.ridge():.0f}",
            f"{len(ops)} measured" if (ops := store.ops(spec.name)) else "estimated",
        )
    Console().print(table)
    print(
        "kernels: operations with measured latencies; the rest is estimated (roofline).\n"
        "`simserve gpus show NAME` lists them."
    )


def _print_gpu(spec: GpuSpec, kernels: list[str]) -> None:
    from rich.console import Console

    from simserve.cli.terminal import FittedTable

    table = FittedTable(title=f"{spec.name}: {spec.title}, SM {spec.sm_arch}")
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("source")
    for label, value, figure in _figures(spec):
        note = f" ({figure.note})" if figure.note else ""
        table.add_row(label, value, f"{figure.source}, {figure.date}{note}")
    Console().print(table)
    if kernels:
        print(f"Measured kernels: {', '.join(kernels)}; ranges: simserve profile show {spec.name}")
    else:
        print("No kernel of this GPU was measured: every step time is estimated (roofline)")


def _figures(spec: GpuSpec) -> list[tuple[str, str, Figure]]:
    from simserve.units import GIB, TERA

    rows = [
        ("memory", f"{spec.hbm_bytes / GIB:.2f} GiB", spec.hbm),
        ("memory bandwidth", f"{spec.hbm_bytes_per_s / TERA:.3f} TB/s", spec.hbm_bandwidth),
    ]
    rows += [(f"peak {dtype}", f"{it.value / TERA:.1f} TFLOP/s", it) for dtype, it in spec.peak.items()]
    if spec.nvlink:
        rows.append(("NVLink, one way", f"{spec.nvlink.value / 1e9:.0f} GB/s", spec.nvlink))
    rows.append(("PCIe, one way", f"{spec.pcie.value / 1e9:.0f} GB/s", spec.pcie))
    return rows
