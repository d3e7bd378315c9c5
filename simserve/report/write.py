"""From a result folder to report.html."""

from __future__ import annotations

import os
from pathlib import Path

from simserve.metrics.comparison import StoredComparison, read_comparison
from simserve.metrics.store import TIMELINE, VARIANTS, read_results
from simserve.report.export.perfetto import write_timeline
from simserve.report.page import render
from simserve.report.run.page import run_charts, run_context


def write_report(folder: Path) -> Path:
    """Write report.html into the result folder, from what lies there alone, and return its path.

    The page of a comparison begins with the comparison and holds every run. The same folder gives the same
    bytes. Raises `ScenarioError` if it is not a result folder.
    """
    folder = Path(folder)
    target, staging = folder / "report.html", folder / "report.html.partial"
    staging.write_bytes(_page(folder).encode())
    os.replace(staging, target)
    for place in (folder, *sorted(folder.glob(f"{VARIANTS}/*/"))):
        run = read_results(place)
        if run.has_steps:
            write_timeline(run, place / TIMELINE)
    return target


def write_comparison_page(found: StoredComparison, target: Path, command: str) -> Path:
    """Write the page of a comparison that has no folder of its own, and return its path."""
    from simserve.report.compare.page import comparison_page  # a run alone does without

    target.write_bytes(comparison_page(found, command).encode())
    return target


def _page(folder: Path) -> str:
    run = read_results(folder)
    comparison = read_comparison(folder)
    if comparison is not None:
        from simserve.report.compare.page import comparison_page  # a run alone does without

        return comparison_page(comparison)
    return render("report.html.j2", run_charts(run), **run_context(run))
