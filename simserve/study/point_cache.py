"""Runs that any study has done before, by the hash of what they depend on; beside the studies' folders."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from simserve.study.bench import Outcome

NAME = ".simserve-runs"


class PointCache:
    """One small file per run; a file is whole or not there."""

    def __init__(self, folder: Path | None) -> None:
        """With None, nothing is kept."""
        self._folder = folder

    def get(self, key: str) -> Outcome | None:
        """Return what a run gave before; None if it is not known."""
        if self._folder is None:
            return None
        try:
            value = json.loads(self._path(self._folder, key).read_bytes())
        except (OSError, ValueError):
            return None
        return Outcome(key, value["row"], value["reason"])

    def put(self, outcome: Outcome) -> None:
        """Keep what a run gave."""
        if self._folder is None:
            return
        path = self._path(self._folder, outcome.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"row": outcome.row, "reason": outcome.reason}, sort_keys=True, ensure_ascii=False)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
        os.replace(name, path)

    def _path(self, folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}.json"
