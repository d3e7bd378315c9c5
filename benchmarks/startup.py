"""CPU seconds of what every call pays: `simserve --help`, and a run of one request with its report.

    python -m benchmarks.startup

User and system time of a fresh process, the least of five after a first one (which fills Python's and Jinja's
caches, as the first call after an installation does), divided by what a raw SimPy timeout takes (see
`benchmarks.cost`), for a machine that others use too: the bars are for one where it takes 1 us.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.cost import timeout_seconds

_REPEATS = 5
_ONE_REQUEST = """
name: one request
model: llama-3.1-8b
engine: {preset: vllm-0.33}
workload:
  synthetic:
    requests: 1
    arrivals: {kind: constant, rate_per_s: 1}
    prompt_tokens: {kind: constant, value: 100}
    output_tokens: {kind: constant, value: 10}
pools: [{name: h100, gpu: h100_sxm, replicas: 1}]
"""
_FINE = (0, 3)
"""Exit codes of a run that wrote its report."""


def cpu_s(arguments: list[str], folder: Path) -> float:
    """Return the CPU seconds of one call of simserve whose caches lie in `folder`."""
    caches = {"PYTHONPYCACHEPREFIX": str(folder / "pycache"), "TMPDIR": str(folder)}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "simserve", *arguments],
        stdout=subprocess.DEVNULL,
        env={**kept, **caches},
        check=False,
    )
    if done.returncode not in _FINE:
        raise RuntimeError(f"simserve {' '.join(arguments)} failed with {done.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print both figures; return the exit code."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        scenario = folder / "one.yaml"
        scenario.write_text(_ONE_REQUEST)
        run = ["run", str(scenario), "--quiet", "--force", "--out", str(folder / "result")]
        missed = False
        for words, arguments, bar_s in (("--help", ["--help"], 0.3), ("run of one request", run, 1.2)):
            first_s, *others_s = [cpu_s(arguments, folder) for _ in range(1 + _REPEATS)]
            timeout_us = 1e6 * timeout_seconds()
            least_s = min(others_s)
            missed |= least_s / timeout_us > bar_s
            print(
                f"{words:20} {least_s:.2f} CPU s (first call {first_s:.2f}); {least_s / timeout_us:.2f} if a "
                f"timeout took 1 us and not {timeout_us:.2f} (at most {bar_s:g})"
            )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
