"""Tables of `simserve models`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from simserve.units import GB

if TYPE_CHECKING:
    from simserve.model import MemoryLedger, ModelSpec, Parallelism
    from simserve.model.dtypes import WeightsDtype
    from simserve.model.spec import LayerGroup


_BAR_CELLS = 12


def print_table(specs: list[ModelSpec]) -> None:
    """Print one line per model."""
    from rich import box
    from rich.console import Console

    from simserve.cli.terminal import FittedTable
    from simserve.model import active_params, kv_bytes_per_token, total_params

    title = "Models (parameters in billions; KV at 16 bit, all layers, one GPU)"
    table = FittedTable(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("layers", justify="right", no_wrap=True)
    table.add_column("attention", no_wrap=True)
    for title in ("total", "active", "KV B/tok"):
        table.add_column(title, justify="right", no_wrap=True)
    for spec in sorted(specs, key=lambda spec: _by_size(spec.name)):
        kinds = sorted({it.brief for group in spec.layers for it in group.attentions})  # capitals first
        table.add_row(
            spec.name,
            str(spec.num_layers),
            " + ".join(kinds),
            f"{total_params(spec) / 1e9:.1f}",
            f"{active_params(spec) / 1e9:.1f}",
            f"{kv_bytes_per_token(spec):,}",
        )
    Console().print(table)


def _by_size(name: str) -> list[tuple[str, float]]:
    """Sort key that puts `qwen3-8b` before `qwen3-32b`."""
    return [(words, float(number or 0)) for words, number in re.findall(r"(\D*)(\d+(?:\.\d+)?)?", name)]


def print_model(spec: ModelSpec, degrees: Parallelism, weights_dtype: WeightsDtype, kv_dtype: str) -> None:
    """Print layers and derived figures of one model."""
    from rich.console import Console

    from simserve.cli.terminal import FittedTable

    layers = FittedTable(title=f"{spec.name}: {spec.num_layers} layers, hidden {spec.hidden_size}")
    layers.add_column("layers", justify="right")
    layers.add_column("attention")
    layers.add_column("feed-forward")
    for group in spec.layers:
        layers.add_row(str(group.count), *_describe(group))
    figures = FittedTable(show_header=False)
    figures.add_column(no_wrap=True)
    figures.add_column()
    for row in _figures(spec, degrees, weights_dtype, kv_dtype):
        figures.add_row(*row)
    console = Console()
    console.print(layers)
    console.print(figures)


def print_ledger(ledger: MemoryLedger, gpu: str) -> None:
    """Print where the bytes of one GPU go."""
    from rich import box
    from rich.console import Console
    from rich.text import Text

    from simserve.cli.terminal import FittedTable

    title = f"Memory of one {gpu}: {ledger.hbm_bytes / GB:.2f} GB"
    table = FittedTable(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("use", no_wrap=True)
    table.add_column("GB", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, width=_BAR_CELLS)
    table.add_column("basis")
    for line in ledger.lines:
        bar = "█" * round(_BAR_CELLS * line.bytes / ledger.hbm_bytes)
        table.add_row(line.name, f"{line.bytes / GB:.2f}", bar, Text(line.basis))
    console = Console()
    console.print(table)
    blocks = f"{ledger.kv_blocks:,} KV blocks of {ledger.block_size} tokens"
    if ledger.kv_groups is None:
        console.print(f"[bold]{blocks} = {ledger.kv_tokens:,} tokens[/bold] per rank, without the null block")
        return
    longest = f"they hold a sequence of {ledger.kv_tokens:,} tokens"
    console.print(f"[bold]{blocks} of one group each[/bold] per rank, without the null block; {longest}")


def _figures(
    spec: ModelSpec, degrees: Parallelism, weights_dtype: WeightsDtype, kv_dtype: str
) -> list[tuple[str, str]]:
    from simserve.model import (
        active_params,
        flops_per_token,
        kv_bytes_per_token,
        kv_bytes_per_token_per_rank,
        total_params,
        weight_bytes_per_gpu,
        weight_bytes_total,
    )
    from simserve.model.dtypes import dtype_words

    spread = f"tp {degrees.tp}, pp {degrees.pp}, dp {degrees.dp}, ep {degrees.ep}"
    whole, share = weight_bytes_total(spec, weights_dtype), weight_bytes_per_gpu(spec, degrees, weights_dtype)
    token, rank = (
        kv_bytes_per_token(spec, kv_dtype),
        kv_bytes_per_token_per_rank(spec, degrees, kv_dtype),
    )
    return [
        ("parameters", f"{total_params(spec) / GB:.2f} B, active {active_params(spec) / GB:.2f} B"),
        ("FLOPs per token", f"{flops_per_token(spec) / 1e9:.1f} GFLOP outside attention scores"),
        ("KV cache", f"{token:,} B per token in {kv_dtype}; {rank:,} B per GPU ({spread})"),
        (
            "weights",
            f"{whole / GB:.1f} GB in {dtype_words(weights_dtype)}; {share / GB:.2f} GB per GPU ({spread})",
        ),
        ("longest context", f"{spec.max_position_embeddings:,} tokens"),
        ("source", spec.source),
    ]


def _describe(group: LayerGroup) -> tuple[str, str]:
    attentions = " + ".join(_times(it.words for it in group.attentions))
    return attentions, " + ".join(_times(it.words for it in group.ffns))


def _times(words: Iterable[str]) -> list[str]:
    items = list(words)
    return [f"{items.count(it)} x {it}" if items.count(it) > 1 else it for it in dict.fromkeys(items)]
