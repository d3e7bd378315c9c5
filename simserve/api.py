"""simserve in Python: run a scenario, read a run that is stored, and look at it as pandas frames.

    import simserve

    run = simserve.run("scenarios/demo.yaml", **{"workload.limit": 500})
    run.requests["ttft_ms"].describe()

Everything here is also in `simserve` itself; see docs/python.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.deploy.build import build_all
from simserve.deploy.simulated import simulate_all, write_all
from simserve.errors import ScenarioError
from simserve.metrics.comparison import read_comparison
from simserve.metrics.store import StoredRun, read_results
from simserve.report.run.headline import headline
from simserve.scenario import Scenario, load_scenario
from simserve.scenario.load import LoadedScenario, loaded_mapping, mapping_of
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


@dataclass(frozen=True, repr=False)
class Run:
    """One run: simulated just now, or read from its folder."""

    name: str
    """The scenario's name, or in a comparison that of the variant."""
    stored: StoredRun
    variants: Mapping[str, Run] = field(default_factory=dict)
    """What `compare` asked for, by name; empty for a run of its own."""

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json holds: latencies, rates, the SLO's verdict, limits; see docs/metrics.md."""
        return self.stored.summary

    @property
    def manifest(self) -> dict[str, Any]:
        """What the run was made of: versions, memory, assumptions."""
        return self.stored.manifest

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
        return f"<Run {self.name!r}: {headline(self.summary, self.manifest)}{variants}>"

    def _repr_html_(self) -> str:
        from html import escape

        table = self.table.to_html(float_format="{:.4g}".format)
        return f"<p>{escape(headline(self.summary, self.manifest))}</p>{table}"


def run(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    *,
    out: str | Path | None = None,
    force: bool = False,
    advice: bool = False,
    **set: Any,
) -> Run:
    """Simulate a scenario: a file, what a file would hold, or a `Scenario`.

    Keywords change values by their path, as `--set` does: `**{"pools.0.tp": 2}`, or `pools__0__tp=2`. With
    `out` the result folder is written too, page and all; `force` replaces one that is there. `advice` looks
    for changes that would help, in short runs, as the command line does for a scenario without variants.

    Raises `ScenarioError` with one line per problem.
    """
    it = _loaded(scenario, [f"{path.replace('__', '.')}={_yaml(value)}" for path, value in set.items()])
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


def _loaded(scenario: Any, options: list[str]) -> LoadedScenario:
    if isinstance(scenario, str | Path):
        return load_scenario(scenario, options)
    if isinstance(scenario, Scenario):
        return loaded_mapping(mapping_of(scenario), options)
    if isinstance(scenario, Mapping):
        return loaded_mapping(scenario, options)
    raise TypeError(f"run() takes a file name, a mapping or a Scenario, not {type(scenario).__name__}")


def _yaml(value: Any) -> str:
    """Return a value as YAML in one line; JSON is YAML."""
    try:
        return json.dumps(value)
    except TypeError as error:
        raise ScenarioError(f"{value!r} cannot stand in a scenario: {error}") from error
