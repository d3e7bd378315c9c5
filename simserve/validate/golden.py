"""What a replay of an engine's own scheduling log says: how many steps agree, and where they part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import InvariantError
from simserve.validate.golden_file import Row, read_lines


@dataclass(frozen=True)
class GoldenLog:
    """A step-by-step log of an engine's scheduler."""

    file: str
    head: Row
    """The config line."""
    requests: list[Row]
    """The request lines, in order of their ids."""
    steps: list[Row]
    """The step lines."""

    @property
    def config(self) -> Row:
        """The engine's settings."""
        return self.head["config"]

    @classmethod
    def read(cls, path: Path) -> GoldenLog:
        """Read a log, gzipped or not: one JSON object per line, each with its `kind`.

        Raises UserError, naming file and line, if it is malformed.
        """
        lines = read_lines(path)
        return cls(str(path), lines["config"][0], lines["request"], lines["step"])


@dataclass(frozen=True)
class Difference:
    """The first step that differs."""

    step: int
    """The log's step counter."""
    ours: Row
    """The fields that differ, as the simulator decided them."""
    theirs: Row
    """The same fields in the log."""

    def __str__(self) -> str:
        parts = [f"{name}: {self.ours[name]} here, {self.theirs[name]} in the log" for name in self.ours]
        return f"step {self.step}: " + "; ".join(parts)


@dataclass(frozen=True)
class Comparison:
    """One log against its replay. After the first difference nothing more is compared."""

    file: str
    steps: int
    """Steps in the log."""
    steps_equal: int
    """Steps that agree in every compared field, up to the first difference."""
    first_difference: Difference | None = None
    fields: tuple[str, ...] = ()
    """The fields compared in each step."""

    @property
    def equal(self) -> bool:
        """Whether every step agrees."""
        return self.first_difference is None


def compare(log: GoldenLog, step: Callable[[int], Row], fields: tuple[str, ...]) -> Comparison:
    """Compare a log with what `step` returns for each of its counters, up to the first difference.

    A field that is absent on both sides is equal. A law of ours that breaks is a difference, in `broken`.
    """
    for done, theirs in enumerate(log.steps):
        try:
            ours = step(theirs["t"])
        except InvariantError as error:
            ours = {"broken": str(error)}
        looked_at = ("broken",) if "broken" in ours else fields
        parted = [name for name in looked_at if ours.get(name) != theirs.get(name)]
        if parted:
            difference = Difference(
                theirs["t"],
                {name: ours.get(name) for name in parted},
                {name: theirs.get(name) for name in parted},
            )
            return Comparison(log.file, len(log.steps), done, difference, fields)
    return Comparison(log.file, len(log.steps), len(log.steps), None, fields)
