"""Peer: DynoSim, the offline trace replay of NVIDIA Dynamo's mock engine (a Rust core), from its wheel.

The wheel `ai-dynamo-runtime` (Apache-2.0) is installed without its dependencies, into an environment of its
own that is removed afterwards.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.sample import Sample, run_child
from benchmarks.peers.workloads import BLOCK_TOKENS, Unavailable

_WHEEL, VERSION = "ai-dynamo-runtime", "1.6.1"
NAME = f"DynoSim {VERSION}"

_CHILD = Path(__file__).with_name("dynosim_child.py")


@dataclass(frozen=True)
class Dynosim:
    """The installed peer."""

    python: Path
    """Interpreter of its environment."""

    def replay(self, job: dict[str, Any]) -> Sample:
        """Replay a job (trace, workers, concurrency, prefix_caching) in a fresh process."""
        return run_child([str(self.python), str(_CHILD)], job | {"block_tokens": BLOCK_TOKENS}, _CHILD.parent)


@contextmanager
def installed() -> Iterator[Dynosim]:
    """Install the peer for a `with` block; raises Unavailable with the last words of what failed."""
    with tempfile.TemporaryDirectory(prefix="dynosim-") as folder:
        python = Path(folder) / "bin" / "python"
        _call([sys.executable, "-m", "venv", folder])
        _call([str(python), "-m", "pip", "install", "--quiet", "--no-deps", f"{_WHEEL}=={VERSION}"])
        yield Dynosim(python)


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unavailable(f"{_WHEEL} {VERSION} cannot be installed: {words[-1]}")
