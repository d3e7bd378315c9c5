"""What a replay of an engine's own scheduling log says: how many steps agree, and where they part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """The first step that differs."""

    step: int
    """The log's step counter."""
    ours: dict[str, Any]
    """The fields that differ, as the simulator decided them."""
    theirs: dict[str, Any]
    """The same fields in the log."""


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
        return self.first_difference is None and self.steps_equal == self.steps
