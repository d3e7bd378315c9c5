"""The whole of `simserve run`, report included: CPU seconds, and the size of the page besides plotly.js.

    python -m benchmarks.report_size

The scenario is scenarios/azure_conv.yaml, 19,366 requests. Fails (exit code 1) over 10 CPU seconds or 2 MB;
skipped if the trace is not here.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.speed import find_trace
from simserve.report.page import plotly_js

_SCENARIO = Path(__file__).resolve().parent.parent / "scenarios" / "azure_conv.yaml"
_MOST_CPU_S = 10.0
_MOST_MB = 2.0
_FINE = (0, 3)
"""Exit codes of a run that wrote its report; 3: there is something to know about its result."""


def run(trace: Path, folder: Path) -> float:
    """Run the scenario on `trace` into `folder` in a child process and return its CPU seconds."""
    command = [sys.executable, "-m", "simserve", "run", str(_SCENARIO), "--quiet", "--out", str(folder)]
    before_s = _children_cpu_s()
    done = subprocess.run(
        [*command, "--set", f"workload.trace={trace}"], stdout=subprocess.DEVNULL, check=False
    )
    if done.returncode not in _FINE:
        raise RuntimeError(f"simserve run failed with {done.returncode}")
    return _children_cpu_s() - before_s


def page_mb(folder: Path) -> float:
    """Return the megabytes of the report besides plotly.js."""
    page_bytes = (folder / "report.html").stat().st_size
    other_bytes = page_bytes - len(plotly_js().encode())
    if other_bytes < 0:
        raise RuntimeError("plotly.js is not in the page: it would not open offline")
    return other_bytes / 1e6


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Print both figures; return the exit code."""
    trace = find_trace("azure_llm_2023_conv")
    if trace is None:
        print("skipped: the trace azure_llm_2023_conv is not here (simserve trace fetch)")
        return 0
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "result"
        cpu_s = run(trace, folder)
        size_mb = page_mb(folder)
    print(f"simserve run, 19,366 requests: {cpu_s:.1f} CPU s (at most {_MOST_CPU_S:g})")
    print(f"report besides plotly.js: {size_mb:.2f} MB (at most {_MOST_MB:g})")
    return int(cpu_s > _MOST_CPU_S or size_mb > _MOST_MB)


if __name__ == "__main__":
    sys.exit(main())
