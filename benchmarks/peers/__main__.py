"""CPU time per simulated request, ours beside a peer's, in one run on the same trace files.

    python -m benchmarks.peers [--case conv-1] [--repeats 5] [--prefix-caching]

Ours and the peer take turns, each in a fresh child process, with the CPU cost of a raw SimPy timeout measured
around every turn; medians are printed. What cannot be had is skipped with its reason.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cost import timeout_seconds
from benchmarks.peers import ours
from benchmarks.peers.dynosim import NAME, Dynosim, installed
from benchmarks.peers.sample import Sample
from benchmarks.peers.workloads import WORKLOADS, Unavailable, write_mooncake

_COLUMNS = (
    "workload",
    "simulator",
    "CPU us/request",
    "range",
    "raw timeouts/request",
    "CPU against ours",
    "left out, CPU s",
    "mean TPOT, ms",
)


@dataclass(frozen=True)
class Turn:
    """One replay of each side, one after the other."""

    ours: Sample
    peer: Sample
    timeout_s: float
    """CPU seconds of a raw SimPy timeout, the mean of before, between and after."""


def take_turns(peer: Dynosim, job: dict[str, Any], repeats: int) -> Iterator[Turn]:
    """Yield `repeats` turns; both sides must have served the same requests and tokens."""
    for _ in range(repeats):
        units = [timeout_seconds()]
        our_sample = ours.replay(job)
        units.append(timeout_seconds())
        peer_sample = peer.replay(job)
        units.append(timeout_seconds())
        for name in ("completed", "output_tokens"):
            if getattr(our_sample, name) != getattr(peer_sample, name):
                raise RuntimeError(f"the sides differ in {name}: {our_sample} and {peer_sample}")
        yield Turn(our_sample, peer_sample, sum(units) / len(units))


def rows(title: str, requests: int, turns: list[Turn]) -> Iterator[str]:
    """Yield the two lines of one workload."""
    ratio = median(turn.peer.cpu_s / turn.ours.cpu_s for turn in turns)
    for side, name in (("ours", "simserve"), ("peer", NAME)):
        samples: list[Sample] = [getattr(turn, side) for turn in turns]
        us = [sample.cpu_s / requests * 1e6 for sample in samples]
        timeouts = median(value / turn.timeout_s / 1e6 for value, turn in zip(us, turns, strict=True))
        yield (
            f"| {title} | {name} | {median(us):.0f} | {min(us):.0f} - {max(us):.0f} | {timeouts:.0f} "
            f"| {1 if side == 'ours' else ratio:.2f} | {median(s.apart_s for s in samples):.2f} "
            f"| {samples[0].tpot_ms:.1f} |"
        )


def compare(names: list[str], repeats: int, prefix_caching: bool) -> Iterator[str]:
    """Yield the lines of the table, and one for each thing that was skipped."""
    with installed() as peer, tempfile.TemporaryDirectory() as folder:
        yield "| " + " | ".join(_COLUMNS) + " |"
        yield "|---" * len(_COLUMNS) + "|"
        for name in names:
            workload = WORKLOADS[name]
            try:
                trace = workload.trace()
            except Unavailable as reason:
                yield f"{workload.title}: skipped, {reason}"
                continue
            path = Path(folder) / f"{name}.jsonl"
            write_mooncake(trace, path)
            job = {
                "trace": str(path),
                "workers": workload.workers,
                "concurrency": workload.concurrency,
                "prefix_caching": prefix_caching,
            }
            yield from rows(workload.title, len(trace), list(take_turns(peer, job, repeats)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--case", action="append", choices=sorted(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--prefix-caching", action="store_true", help="on for both sides, although no prompt shares anything"
    )
    chosen = parser.parse_args()
    try:
        for line in compare(chosen.case or list(WORKLOADS), chosen.repeats, chosen.prefix_caching):
            print(line, flush=True)
    except Unavailable as reason:
        print(f"skipped: {reason}")


if __name__ == "__main__":
    main()
