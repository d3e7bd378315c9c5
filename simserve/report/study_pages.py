"""The page of a stored study again: what `study.json` holds is all that a page needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simserve.errors import ScenarioError
from simserve.report.capacity_page import write_capacity_page
from simserve.report.size_page import write_size_page
from simserve.report.sweep_page import write_sweep_page

STUDY = "study.json"
WRITERS: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "sweep": write_sweep_page,
    "search": write_sweep_page,
    "capacity": write_capacity_page,
    "size": write_size_page,
}
"""By the study's kind."""


def write_study_page(folder: Path) -> Path:
    """Write report.html of a study from its study.json; raises `ScenarioError` if that is not one of ours."""
    path = Path(folder) / STUDY
    try:
        study = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ScenarioError(f"{path}: not valid JSON: {error}") from error
    kind = study.get("kind") if isinstance(study, dict) else None
    if kind not in WRITERS:
        raise ScenarioError(f"{path}: kind: found {kind!r}, allowed: {', '.join(WRITERS)}")
    page = Path(folder) / "report.html"
    WRITERS[kind](study, page)
    return page
