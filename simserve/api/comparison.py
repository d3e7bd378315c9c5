"""Runs beside each other: the answer, every measure with its difference, the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from simserve.api.figures import Figures
from simserve.api.notebook import shown
from simserve.api.runs import Run, load
from simserve.errors import ScenarioError
from simserve.metrics.comparison import StoredComparison
from simserve.metrics.comparison import compare as compare_stored
from simserve.report.compare.page import comparison_charts, plain_answer
from simserve.report.write import write_comparison_page

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Comparison:
    """Several runs, the first of them the base."""

    runs: Mapping[str, Run]

    @cached_property
    def stored(self) -> StoredComparison:
        """What compare.json holds, with the runs."""
        runs = {name: run.stored for name, run in self.runs.items()}
        return StoredComparison(runs, compare_stored(runs))

    @property
    def summary(self) -> Figures:
        """What compare.json holds: measures, what was changed, requests in pairs; see docs/metrics.md."""
        return Figures(self.stored.table)

    @property
    def answer(self) -> str:
        """The sentence that the page begins with."""
        return plain_answer(self.stored)

    @cached_property
    def table(self) -> DataFrame:
        """One row for each measure, one column for each run."""
        import pandas as pd

        rows = {row["label"]: row["values"] for row in self.stored.table["measures"]}
        return pd.DataFrame.from_dict(rows, orient="index", columns=list(self.runs))

    def report(self, path: str | Path) -> Path:
        """Write the page to a file, or to report.html in a folder, and return its path."""
        return write_comparison_page(self.stored, page_at(path), "simserve.compare")

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.runs)}: {self.answer}>"

    def _repr_html_(self) -> str:
        return shown(self.answer, self.table, comparison_charts(self.stored).values())


def compare(*runs: Run | str | Path, **named: Run | str | Path) -> Comparison:
    """Compare runs, or the folders that hold them; the first is the base.

    A run with variants, alone, is compared with them. Keywords give names; without one a run has that of its
    scenario, or of its folder. Raises `ScenarioError` where two have the same name or there is only one.
    """
    found: dict[str, Run] = {}
    for one in runs:
        run = one if isinstance(one, Run) else load(one)
        if len(runs) + len(named) == 1:
            found |= {run.name: run, **run.variants}
        else:
            _put(found, run.name if isinstance(one, Run) else Path(one).name, run)
    for name, one in named.items():
        _put(found, name, one if isinstance(one, Run) else load(one))
    if len(found) < 2:
        raise ScenarioError("compare takes two runs, or one with variants")
    return Comparison(found)


def _put(found: dict[str, Run], name: str, run: Run) -> None:
    if name in found:
        raise ScenarioError(f"two runs are called {name!r}: name them, as in compare(before=..., after=...)")
    found[name] = run


def page_at(path: str | Path) -> Path:
    """Return the file of a page: `path`, or report.html in it if it is a folder; folders are made."""
    path = Path(path)
    target = path if path.suffix == ".html" else path / "report.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
