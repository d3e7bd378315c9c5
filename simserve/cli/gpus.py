"""`simserve gpus`: the GPUs that ship, and where each of their figures was read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from simserve.hardware import Figure, GpuSpec

app = typer.Typer(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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

    specs = [load_gpu(name, profiles) for name in gpu_names(profiles)]
    if as_json:
        print(json.dumps([spec.model_dump(mode="json", exclude_none=True) for spec in specs], indent=2))
    else:
        _print_table(specs, profiles)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the GPU, as in a scenario.")],
    profiles: Profiles = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show one GPU: every figure with its source and date.

    Example: simserve gpus show h100_sxm
    """
    from simserve.hardware import load_gpu

    spec = load_gpu(name, profiles)
    if as_json:
        print(json.dumps(spec.model_dump(mode="json", exclude_none=True), indent=2))
    else:
        _print_gpu(spec)


def _print_table(specs: list[GpuSpec], profiles: list[Path]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from simserve.latency.profiles import ProfileStore
    from simserve.units import GIB, TERA

    title = "GPUs (vendor figures, dense; link: NVLink or Infinity Fabric, one way)"
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("name", no_wrap=True)
    for title in ("HBM GiB", "TB/s", "bf16 TFLOP/s", "fp8 TFLOP/s", "link GB/s", "FLOP/B bf16"):
        table.add_column(title, justify="right")
    table.add_column("kernels", no_wrap=True)
    store = ProfileStore(profiles)
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
            "measured" if store.ops(spec.name) else "estimated",
        )
    Console().print(table)


def _print_gpu(spec: GpuSpec) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{spec.name}: {spec.title}, SM {spec.sm_arch}", title_justify="left")
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("source")
    for label, value, figure in _figures(spec):
        note = f" ({figure.note})" if figure.note else ""
        table.add_row(label, value, f"{figure.source}, {figure.date}{note}")
    Console().print(table)


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
