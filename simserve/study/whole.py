"""A whole study: its runs, and the files that it leaves in a folder, page and all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from simserve.errors import ScenarioError, nearest
from simserve.report.study.pages import WRITERS
from simserve.scenario.load import LoadedScenario
from simserve.study.campaign import Campaign, Options, campaign
from simserve.study.capacity import require_capacity, run_capacity
from simserve.study.files import write_json, write_recommended, write_table
from simserve.study.points import require_sweep, run_sweep
from simserve.study.search import EMBEDDED, open_study, require_search, run_search
from simserve.study.size import SizeSearch, require_size, size_study

Study = dict[str, Any]
"""What study.json holds."""


class Place(NamedTuple):
    """Where a study is done, and from what command."""

    folder: Path
    command: str
    force: bool = False
    """Start over, instead of going on where the study stopped."""
    storage: str | None = None
    """Database of a search; None: a file in the folder."""


def run_study(kind: str, it: LoadedScenario, place: Place, options: Options) -> Study:
    """Do the study of that kind in its folder, or go on where it stopped; return what study.json holds.

    Raises `ScenarioError` if the scenario has no such block, or the folder holds something else.
    """
    if kind not in _KINDS:
        raise ScenarioError(f"unknown study {kind!r}{nearest(kind, _KINDS)}; known: {', '.join(_KINDS)}")
    require, find = _KINDS[kind]
    spec = require(it)
    with campaign(it, kind, place.folder, options, place.force) as work:
        study = find(work, spec, place)
        write_json(place.folder / "study.json", study)
        WRITERS[kind](study, place.folder / "report.html")
    return study


def _sweep(work: Campaign, spec: Any, place: Place) -> Study:
    study, records, paths = run_sweep(work, spec)
    write_table(place.folder / "results.parquet", records, paths)
    return study | {"command": place.command}


def _capacity(work: Campaign, spec: Any, place: Place) -> Study:
    return _recommending(work, run_capacity(work, spec), place)


def _size(work: Campaign, spec: Any, place: Place) -> Study:
    search = SizeSearch(work, spec)
    search.run()
    return _recommending(work, size_study(work, search), place)


def _search(work: Campaign, spec: Any, place: Place) -> Study:
    if place.force:
        (place.folder / EMBEDDED).unlink(missing_ok=True)
    found = run_search(work, spec, open_study(work.it, spec, place.folder, place.storage))
    return _recommending(work, found, place)


def _recommending(work: Campaign, study: Study, place: Place) -> Study:
    study["command"] = place.command
    write_recommended(work.it, place.folder, study)
    return study


_KINDS: dict[str, tuple[Callable[[LoadedScenario], Any], Callable[[Campaign, Any, Place], Study]]] = {
    "sweep": (require_sweep, _sweep),
    "capacity": (require_capacity, _capacity),
    "size": (require_size, _size),
    "search": (require_search, _search),
}
