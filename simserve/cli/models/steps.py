"""The two steps that `simserve models show` explains: one that decodes a batch, and one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from simserve.latency import OpTime
    from simserve.model import ModelSpec, Parallelism
    from simserve.model.dtypes import WeightsDtype


# The parts of an engine step as text: a table of kernels, and one bar that is cut up among them.

_BAR_CELLS = 76
_SHOWN_SHARE = 0.005
"""Kernels below this share are drawn and listed together."""


def print_parts(parts: Sequence[OpTime], markdown: bool) -> None:
    """Print the kernels of a step, longest first, with their share."""
    total_us = sum(part.us for part in parts)
    cells = [
        (part.name, str(part.calls), f"{part.us / 1000:.3f}", f"{part.us / total_us:.1%}", part.provenance)
        for part in _longest_first(parts)
    ]
    cells.append(("step", "", f"{total_us / 1000:.3f}", "", ""))
    titles = ("kernel", "calls", "ms", "share", "from")
    if markdown:
        lines = [titles, ("---", "--:", "--:", "--:", "---"), *cells]
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    from rich.console import Console

    from simserve.cli.terminal import FittedTable

    table = FittedTable()
    for title in titles:
        table.add_column(title, justify="left" if title in ("kernel", "from") else "right", no_wrap=True)
    for line in cells:
        table.add_row(*line)
    Console().print(table)


def print_step(title: str, parts: Sequence[OpTime]) -> None:
    """Print a step: one bar in which each kernel has a letter, and the kernels of each letter."""
    from rich import box
    from rich.console import Console

    from simserve.cli.terminal import FittedTable

    total_us = sum(part.us for part in parts)
    shown, rest = _split(parts, total_us)
    table = FittedTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("", "kernel", "calls", "us", "share", "from"):
        table.add_column(name, justify="left" if name in ("", "kernel", "from") else "right", no_wrap=True)
    for letter, part in zip(ascii_lowercase, shown, strict=False):
        cells = (str(part.calls), f"{part.us:,.1f}", f"{part.us / total_us:.1%}", part.provenance)
        table.add_row(letter, part.name, *cells)
    if rest:
        rest_us, calls = sum(part.us for part in rest), sum(part.calls for part in rest)
        name = f"{len(rest)} more, each under {_SHOWN_SHARE:.1%}"
        kinds = {part.provenance for part in rest}
        origin = kinds.pop() if len(kinds) == 1 else "mixed"
        table.add_row(".", name, str(calls), f"{rest_us:,.1f}", f"{rest_us / total_us:.1%}", origin)
    console = Console()
    console.print(f"{title}: [bold]{total_us / 1000:,.3f} ms[/bold]", highlight=False)
    console.print(bar([part.us for part in shown], total_us), markup=False, highlight=False)
    console.print(table)
    console.print(_by_provenance(parts, total_us), highlight=False)


def bar(parts_us: Sequence[float], total_us: float, cells: int = _BAR_CELLS) -> str:
    """Return a bar of `cells` characters: `a` for the share of the first part, `b` of the next ...

    What the parts leave of the total is drawn as dots. Each part ends where the sum up to it does, rounded.
    """
    text, so_far = "", 0.0
    for letter, us in zip(ascii_lowercase, parts_us, strict=False):
        so_far += us
        text = text.ljust(round(cells * so_far / total_us), letter)
    return text.ljust(cells, ".")


def _split(parts: Sequence[OpTime], total_us: float) -> tuple[list[OpTime], list[OpTime]]:
    """Return the kernels to show, longest first, and those that are too short (or too many)."""
    ordered = _longest_first(parts)
    shown = [part for part in ordered if part.us >= _SHOWN_SHARE * total_us][: len(ascii_lowercase)]
    return shown, ordered[len(shown) :]


def _longest_first(parts: Sequence[OpTime]) -> list[OpTime]:
    return sorted((part for part in parts if part.us > 0), key=lambda part: -part.us)


def _by_provenance(parts: Sequence[OpTime], total_us: float) -> str:
    """Return the shares of the step by where its figures come from, largest first."""
    sums: dict[str, float] = {}
    for part in parts:
        sums[part.provenance] = sums.get(part.provenance, 0.0) + part.us
    shares = sorted(((us, name) for name, us in sums.items() if us > 0), reverse=True)
    return "of the time " + ", ".join(f"{us / total_us:.1%} {name}" for us, name in shares)


class Load(NamedTuple):
    """What the steps carry; with attention data parallelism, on one of its ranks."""

    sequences: int
    context: int
    """Tokens that each decoding sequence attends, the new one included."""
    prompt: int
    """New tokens of the prompt, nothing cached."""

    def check(self) -> None:
        """Raise `ScenarioError` for a step that carries nothing."""
        from simserve.errors import ScenarioError

        for name, value in self._asdict().items():
            if value < 1:
                raise ScenarioError(f"--{name} {value}: at least 1")


class ModelSteps(NamedTuple):
    """Where the time of a model's steps goes."""

    load: Load
    decode: list[OpTime]
    prompt: list[OpTime]
    overhead: str
    """Name of the engine overhead that is included."""
    estimated: tuple[str, ...]
    """What has no measured table, in words."""

    def print(self) -> None:
        """Print both steps, and what was estimated."""

        load = self.load
        print_step(f"Decode, {load.sequences:,} sequences at context {load.context:,}", self.decode)
        print()
        print_step(f"Prefill, one prompt of {load.prompt:,} tokens", self.prompt)
        for note in self.estimated:
            print(f"estimated: {note}")

    def facts(self) -> dict[str, Any]:
        """Return the same for machines."""

        def step(parts: list[OpTime], **about: int) -> dict[str, Any]:
            total_us = sum(part.us for part in parts)
            plain = [part._asdict() | {"share": part.us / total_us} for part in parts]
            return {**about, "step_us": total_us, "parts": plain}

        load = self.load
        return {
            "decode": step(self.decode, sequences=load.sequences, context=load.context),
            "prompt": step(self.prompt, tokens=load.prompt),
            "overhead": self.overhead,
            "estimated": list(self.estimated),
        }


def model_steps(
    spec: ModelSpec,
    gpu: str,
    degrees: Parallelism,
    load: Load,
    weights_dtype: WeightsDtype,
    kv_dtype: str,
    engine: str,
) -> ModelSteps:
    """Return where the time goes, with the overhead of the named engine version."""
    from simserve.core import Chunk, Request
    from simserve.engines.overheads import OVERHEADS
    from simserve.engines.presets import engine_preset
    from simserve.hardware import load_gpu
    from simserve.latency import compile_step_latency, explain_step

    load.check()
    overhead = OVERHEADS.get(engine_preset(engine).policy, OVERHEADS["vllm"])
    latency = compile_step_latency(
        spec, load_gpu(gpu), degrees, weights_dtype=weights_dtype, kv_dtype=kv_dtype, overhead=overhead
    )
    chunk = Chunk(Request(0, 0, load.prompt, 1), load.prompt, 0, True)
    return ModelSteps(
        load,
        explain_step(latency, load.sequences, load.sequences * load.context),
        explain_step(latency, 0, 0, [chunk]),
        overhead.name,
        latency.estimated,
    )
