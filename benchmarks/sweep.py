"""Points per second of a sweep with one and with two workers, and the memory that it takes.

    python -m benchmarks.sweep                      200 points of 300 chat requests
    python -m benchmarks.sweep --azure              1,000 points of the 19,366 Azure conversations of 2023

Memory is that of all processes together, sampled while they work (Linux).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.speed import find_trace

SCENARIO = """\
name: benchmark
model: llama-3.1-8b
engine: vllm-0.33
workload: {{trace: {trace}, limit: {limit}}}
pools: [{{gpu: h100_sxm, replicas: 2}}]
slo: {{ttft_ms: 500, tpot_ms: 25}}
sweep:
  over: {{workload.rate_scale: {{from: 1.0, to: 4.0, steps: {points}}}}}
"""


def sweep(text: str, workers: int) -> tuple[float, float]:
    """Run a sweep; return its seconds and the most memory of its processes, in GB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sweep.yaml")
        path.write_text(text)
        command = [
            "sweep",
            str(path),
            "--out",
            f"{folder}/out",
            "--workers",
            str(workers),
            "--no-cache",
            "-q",
        ]
        start, most = time.monotonic(), 0
        run = subprocess.Popen([sys.executable, "-m", "simserve", *command], stdout=subprocess.DEVNULL)
        while run.poll() is None:
            most = max(most, sum(map(_resident, [run.pid, *_children(run.pid)])))
            time.sleep(0.2)
        if run.returncode:
            raise SystemExit(f"the sweep failed with {run.returncode}")
        return time.monotonic() - start, most / 1e9


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))
    except (OSError, StopIteration):
        return 0


def main() -> None:
    """Print a line per number of workers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--azure", action="store_true")
    parser.add_argument("--points", type=int)
    options = parser.parse_args()
    if options.azure:
        trace = find_trace("azure_llm_2023_conv") or find_trace("AzureLLMInferenceTrace_conv")
        if trace is None:
            raise SystemExit("the Azure trace is not here; simserve trace fetch azure-2023-conv brings it")
        points, limit = options.points or 1000, 19_366
    else:
        trace, points, limit = "traces/chat.csv.gz", options.points or 200, 300
    text = SCENARIO.format(trace=trace, limit=limit, points=points)
    seconds = {}
    for workers in (1, 2):
        seconds[workers], memory_gb = sweep(text, workers)
        rate = points / seconds[workers]
        took = f"{points} points in {seconds[workers]:.1f} s, {rate:.2f}/s"
        print(f"{workers} workers: {took}, {memory_gb:.2f} GB")
    print(f"two workers do {seconds[1] / seconds[2]:.2f} times the points of one")


if __name__ == "__main__":
    main()
