"""One measured replay, by any side: a child process that prints what it did as one line of JSON."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LIMIT_S = 600


@dataclass(frozen=True)
class Sample:
    """What one replay cost and did."""

    cpu_s: float
    """User and system CPU seconds of the simulation, all threads, without start-up and reading the trace."""
    apart_s: float
    """CPU seconds of what was left out."""
    completed: int
    output_tokens: int
    tpot_ms: float
    """Mean time per output token that was simulated, to see whether both sides did alike work."""


def run_child(command: list[str], job: dict[str, Any], folder: Path) -> Sample:
    """Run `command` in `folder` with `job` on its standard input; the last line it prints is the sample."""
    done = subprocess.run(
        command,
        input=json.dumps(job),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return Sample(**json.loads(done.stdout.splitlines()[-1]))
