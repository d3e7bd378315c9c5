"""A run: of a scenario, or read from its folder, to be looked at as pandas frames."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.api.figures import Figures
from simserve.api.notebook import shown
from simserve.deploy.build import build_all
from simserve.deploy.simulated import simulate_all, write_all
from simserve.errors import ScenarioError
from simserve.metrics.comparison import read_comparison
from simserve.metrics.store import StoredRun, read_results
from simserve.report.page import render
from simserve.report.run.headline import headline
from simserve.report.run.page import run_charts, run_context
from simserve.scenario import Scenario
from simserve.scenario import load_scenario as load_file
from simserve.scenario.load import LoadedScenario, changed_whole, loaded_mapping, mapping_of
from simserve.study.advice import advise

if TYPE_CHECKING:
    from pandas import DataFrame


COLUMNS = {
    "TTFT p50, ms": ("whole", "ttft_ms", "p50"),
    "TTFT p99, ms": ("whole", "ttft_ms", "p99"),
    "TPOT p50, ms": ("whole", "tpot_ms", "p50"),
    "ITL p99, ms": ("whole", "itl_ms", "p99"),
    "requests/s": ("rates", "requests_per_s"),
    "output tokens/s": ("rates", "output_tokens_per_s"),
    "SLO": ("slo_verdict", "outcome"),
    "within SLO": ("slo_verdict", "kept"),
    "completed": ("counts", "completed"),
}
"""Columns of `Run.table`: where each stands in the summary."""


SMALL_CHARTS = ("over-time", "ttft")
"""What a notebook shows of a run's charts."""


@dataclass(frozen=True, repr=False)
class Run:
    """One run: simulated just now, or read from its folder."""

    name: str
    """The scenario's name, or in a comparison that of the variant."""
    stored: StoredRun
    variants: Mapping[str, Run] = field(default_factory=dict)
    """What `compare` asked for, by name; empty for a run of its own."""

    @property
    def summary(self) -> Figures:
        """What summary.json holds: latencies, rates, the SLO's verdict, limits; see docs/metrics.md.

        A dictionary that can also be read with dots: `summary.whole.ttft_ms.p99`.
        """
        return Figures(self.stored.summary)

    @property
    def manifest(self) -> Figures:
        """What the run was made of: versions, memory, assumptions."""
        return Figures(self.stored.manifest)

    @property
    def answer(self) -> str:
        """The sentence that the page begins with."""
        return headline(self.stored.summary, self.stored.manifest)

    @property
    def scenario(self) -> str:
        """The scenario with every option filled in, as YAML; running it again gives the same result."""
        return self.stored.scenario_yaml

    @cached_property
    def requests(self) -> DataFrame:
        """One row per request, in order of arrival; columns: docs/metrics.md."""
        return self.stored.requests.to_pandas()

    @cached_property
    def timeline(self) -> DataFrame:
        """The state of the replicas over time."""
        return self.stored.timeline.to_pandas()

    @property
    def table(self) -> DataFrame:
        """The main figures, one row for this run and one for each variant."""
        import pandas as pd

        runs = {self.name: self, **self.variants}
        rows = {
            name: {column: run._figure(*path) for column, path in COLUMNS.items()}
            for name, run in runs.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index").dropna(axis="columns", how="all")

    def _figure(self, *path: str) -> Any:
        found: Any = self.summary
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def __repr__(self) -> str:
        variants = f"; variants: {', '.join(self.variants)}" if self.variants else ""
        return f"<Run {self.name!r}: {self.answer}{variants}>"

    def report(self, path: str | Path) -> Path:
        """Write the run's own page to a file, or to report.html in a folder, and return its path."""
        stored = self.stored
        target = Path(path) if Path(path).suffix == ".html" else Path(path) / "report.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        page = render("report.html.j2", run_charts(stored), **run_context(stored))
        target.write_text(page, encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        charts = run_charts(self.stored)
        return shown(self.answer, self.table, [charts[name] for name in SMALL_CHARTS if name in charts])


Source = str | Path | Mapping[str, Any] | Scenario | LoadedScenario
"""A scenario: a file, what a file would hold, or one that is validated already."""


def load_scenario(scenario: Source, overrides: Mapping[str, Any] | None = None) -> LoadedScenario:
    """Validate a scenario; `.scenario` of the result holds its values, and `run` takes it as it is.

    `overrides` change values by their path, as `--set` does: `{"pools.0.tp": 2}`. Raises `ScenarioError` with
    one line per problem.
    """
    options = [f"{path}={_yaml(value)}" for path, value in (overrides or {}).items()]
    if isinstance(scenario, LoadedScenario):
        return changed_whole(scenario, options) if options else scenario
    if isinstance(scenario, str | Path):
        return load_file(scenario, options)
    if isinstance(scenario, Scenario):
        return loaded_mapping(mapping_of(scenario), options)
    if isinstance(scenario, Mapping):
        return loaded_mapping(scenario, options)
    raise TypeError(f"expected a file name, a mapping or a Scenario, not {type(scenario).__name__}")


def run(
    scenario: Source,
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    force: bool = False,
    advice: bool = False,
    **set: Any,
) -> Run:
    """Simulate a scenario: a file, what a file would hold, or a `Scenario`.

    `overrides` change values by their path, as `--set` does: `{"pools.0.tp": 2}`; so do keywords:
    `pools__0__tp=2`. With `out` the result folder is written too, page and all; `force` replaces one that is
    there. `advice` looks for changes that would help, in short runs, as the command line does for a scenario
    without variants.

    Raises `ScenarioError` with one line per problem.
    """
    by_keyword = {path.replace("__", "."): value for path, value in set.items()}
    it = load_scenario(scenario, {**(overrides or {}), **by_keyword})
    deployments = build_all(it)
    found = advise if advice and len(deployments) == 1 else None
    if out is not None:
        write_all(deployments, Path(out), force, "simserve.run", advise=found)
        return load(out)
    runs = {name: one.stored("simserve.run") for name, one in simulate_all(deployments, advise=found)}
    base, *variants = runs
    name = base if variants else it.scenario.name
    return Run(name, runs[base], {variant: Run(variant, runs[variant]) for variant in variants})


def load(folder: str | Path) -> Run:
    """Return the run in a result folder that `simserve run`, or `run(..., out=...)`, wrote.

    Raises `ScenarioError` naming what is missing or broken.
    """
    folder = Path(folder)
    stored, comparison = read_results(folder), read_comparison(folder)
    if comparison is None:
        return Run(stored.manifest["scenario_name"], stored)
    variants = {name: comparison.runs[name] for name in comparison.table["variants"]}
    return Run(comparison.table["base"], stored, {name: Run(name, one) for name, one in variants.items()})


def _yaml(value: Any) -> str:
    """Return a value as YAML in one line; JSON is YAML."""
    try:
        return json.dumps(value)
    except TypeError as error:
        raise ScenarioError(f"{value!r} cannot stand in a scenario: {error}") from error
