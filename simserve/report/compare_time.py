"""Several runs over time: the same series of each, on one axis."""

from __future__ import annotations

import numpy as np

from simserve.metrics.bands import BINS
from simserve.metrics.store import StoredRun
from simserve.report.bands import Band
from simserve.report.looks import looks
from simserve.report.over_time import Line, Panel, drawn
from simserve.report.page import Figure
from simserve.report.run_page import course_of

SERIES = {
    "waiting": ("waiting requests", 1.0),
    "running": ("running requests", 1.0),
    "completions_per_s": ("completions/s", 1.0),
    "kv": ("KV held, mean over pools, %", 100.0),
}


def runs_over_time(runs: dict[str, StoredRun]) -> Figure:
    """Return a panel per series with a line per run; over several seeds their means, with bands."""
    curves: dict[str, Band] = {}
    for name, run in runs.items():
        found = course_of(run, BINS)
        if found:
            found["kv"] = _mean([band for key, band in found.items() if key.startswith("kv_mean.")])
        curves |= {f"{key} {name}": found[key] for key in SERIES if key in found}
    rows = [
        Panel(
            title,
            [
                Line(f"{key} {look.name}", look.name, f"${look.colour}", look.dash, scale)
                for look in looks(list(runs))
                if f"{key} {look.name}" in curves
            ],
        )
        for key, (title, scale) in SERIES.items()
    ]
    rows = [panel for panel in rows if panel.lines]
    return drawn(rows, curves, keyed=False) if rows else {"data": [], "layout": {}}


def _mean(bands: list[Band]) -> Band:
    """Return the mean over pools; with its band where there is one pool (pools depend on each other)."""
    if len(bands) == 1:
        return bands[0]
    return Band(bands[0].place, np.mean([band.mean for band in bands], axis=0))
