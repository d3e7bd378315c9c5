"""Figures that others published about what a scenario shows, so that a report can put ours beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, field_validator

from simserve.errors import nearest
from simserve.metrics.published import MEASURABLE
from simserve.scenario.part import Part

RunNames = str | Annotated[tuple[str, ...], Field(strict=False, min_length=1)]


class PublishedSpec(Part):
    """One published figure and how ours is computed from the runs of the scenario."""

    figure: str = Field(min_length=1, description="What was published, in words.")
    value: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        description="The figure, in the measure's unit, or (with over) a ratio."
    )
    source: str = Field(min_length=1, description="Who published it, where in the source, and when.")
    measure: str = Field(
        description="A measure of compare.json, such as whole.output_tokens_per_s; or capacity: the highest "
        "rate among runs that are stable and whose p99 latencies are within the SLO."
    )
    of: RunNames | None = Field(
        None, description="The run that shows it; several: the best of them. Default: the scenario itself."
    )
    over: RunNames | None = Field(None, description="The run that the figure is relative to.")
    differs: str | None = Field(None, description="Why ours is another, if it is.")

    @field_validator("measure")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in MEASURABLE:
            raise ValueError(f"unknown measure {value!r}{nearest(value, MEASURABLE)}")
        return value

    def runs(self) -> list[str]:
        """Return the names of all runs that the figure speaks of."""
        return [*names(self.of), *names(self.over)]


def names(of: RunNames | None) -> Sequence[str]:
    """Return the names of runs, however they were written."""
    return () if of is None else (of,) if isinstance(of, str) else of
