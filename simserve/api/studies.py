"""Studies: many runs of one scenario, and what they say about it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.api.comparison import page_at
from simserve.api.figures import Figures
from simserve.api.notebook import shown
from simserve.api.runs import Source, load_scenario
from simserve.metrics.measures import short_names
from simserve.report.study.pages import WRITERS, study_answer, study_chart
from simserve.study.campaign import Options
from simserve.study.journal import CACHE_NAME
from simserve.study.whole import Place, run_study

if TYPE_CHECKING:
    from pandas import DataFrame

TABLES = {"sweep": "points", "search": "points", "capacity": "points", "size": "feasible"}
"""What of each kind's study.json the table shows."""


@dataclass(frozen=True, repr=False)
class Study:
    """What a sweep, a capacity search, a sizing or a search found."""

    kind: str
    """sweep, capacity, size or search."""
    data: dict[str, Any]

    @property
    def summary(self) -> Figures:
        """What study.json holds; see docs/sweeps.md, docs/capacity.md, docs/sizing.md and docs/search.md."""
        return Figures(self.data)

    @property
    def answer(self) -> str:
        """The sentence that the page begins with."""
        return study_answer(self.data)

    @cached_property
    def table(self) -> DataFrame:
        """One row for each point: its settings, then its figures, means over the seeds.

        Of a sizing, the deployments that meet the SLO, the cheapest first.
        """
        import pandas as pd

        rows = [_row(entry) for entry in self.data[TABLES[self.kind]]]
        return pd.DataFrame(rows).dropna(axis="columns", how="all")

    def report(self, path: str | Path) -> Path:
        """Write the page to a file, or to report.html in a folder, and return its path."""
        target = page_at(path)
        WRITERS[self.kind](self.data, target)
        return target

    def __repr__(self) -> str:
        return f"<Study, {self.kind} of {self.data['name']!r}: {self.answer}>"

    def _repr_html_(self) -> str:
        chart = study_chart(self.data)
        return shown(self.answer, self.table.head(12), [chart] if chart else [])


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of one point, whatever the kind of study calls its parts."""
    settings = entry.get("settings") or {}
    names = short_names(settings) if settings else {}
    row = {names[path]: value for path, value in settings.items()}
    row |= {key: value for key, value in entry.items() if isinstance(value, str | int | float)}
    return row | (entry.get("means") or {})


def sweep(scenario: Source, overrides: Mapping[str, Any] | None = None, **how: Any) -> Study:
    """Run a scenario at every point of its `sweep` block.

    `overrides` change values by path, as in `run`. `out` is the folder for dataset and page; without one
    nothing is kept. A study that was interrupted goes on in its folder; `force=True` starts over. `workers`,
    `executor` and `address` say where to run.

    Raises `ScenarioError` if the scenario has no such block.
    """
    return _study("sweep", scenario, overrides, **how)


def capacity(scenario: Source, overrides: Mapping[str, Any] | None = None, **how: Any) -> Study:
    """Find the highest load within the SLO, over the range of the `capacity` block; see `sweep`."""
    return _study("capacity", scenario, overrides, **how)


def size(scenario: Source, overrides: Mapping[str, Any] | None = None, **how: Any) -> Study:
    """Find the cheapest deployment within the SLO among those of the `size` block; see `sweep`."""
    return _study("size", scenario, overrides, **how)


def search(scenario: Source, overrides: Mapping[str, Any] | None = None, **how: Any) -> Study:
    """Search the space of the `search` block for what no other point beats; needs optuna; see `sweep`."""
    return _study("search", scenario, overrides, **how)


def _study(
    kind: str,
    scenario: Source,
    overrides: Mapping[str, Any] | None,
    *,
    out: str | Path | None = None,
    force: bool = False,
    workers: int | None = None,
    executor: str = "local",
    address: str | None = None,
) -> Study:
    it = load_scenario(scenario, overrides)
    with ExitStack() as stack:
        folder = Path(out or stack.enter_context(tempfile.TemporaryDirectory(prefix="simserve-")))
        cache = folder.parent / CACHE_NAME if out else None
        place = Place(folder, f"simserve.{kind}", force)
        return Study(kind, run_study(kind, it, place, Options(workers, executor, address, cache)))
