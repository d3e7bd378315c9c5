"""Starts the command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start(*args: str | Path | int) -> subprocess.Popen[str]:
    """Start `python -m simserve` in the current folder."""
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-m", "simserve", *map(str, args)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), root])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
