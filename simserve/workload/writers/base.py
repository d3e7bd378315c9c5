"""The contract of a format that traces can be written in."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Protocol

from simserve.core import Trace
from simserve.registry import Registry


class TraceWriter(Protocol):
    """Writes one format. Reading the result back gives the same trace, but for its `losses`."""

    suffixes: ClassVar[tuple[str, ...]]
    """Endings that a file of this format may have (".gz" apart)."""

    def losses(self, trace: Trace) -> list[str]:
        """Return what of the trace this format cannot hold, in words; empty if it can hold all."""
        ...

    def encode(self, trace: Trace, path: Path) -> bytes:
        """Return the content of the file, not compressed; what cannot be held is left out."""
        ...


WRITERS: Registry[type[TraceWriter]] = Registry("writable trace format", "simserve.workload.writers")


def column_losses(trace: Trace, *held: str) -> list[str]:
    """Return the losses of a format that has only the `held` ones of the optional columns."""
    words = {
        "max_tokens": "output limits (max_tokens)",
        "priority": "priorities",
        "session": "sessions and think times",
        "block_ids": "block ids (prefix reuse)",
    }
    lost = [text for name, text in words.items() if name not in held and getattr(trace, name) is not None]
    if trace.labels and "labels" not in held:
        lost.append(f"columns {', '.join(trace.labels)}")
    return lost


def decimal(value: int, unit: int) -> str:
    """Write an integer number of `unit`-ths (a power of ten) as an exact decimal without trailing zeros."""
    whole, part = divmod(value, unit)
    return f"{whole}.{part:0{len(str(unit)) - 1}d}".rstrip("0") if part else str(whole)
