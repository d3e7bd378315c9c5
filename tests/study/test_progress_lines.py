"""The progress of a study: done, left, pruned; time to go; best so far; each on a line of its own."""

from __future__ import annotations

import time

from simserve.cli.study_options import lines
from simserve.study.campaign import Counts


def test_the_pace_so_far_gives_the_time_to_go() -> None:
    """10 runs in 100 s, 2 of 12 found: 30 left take 300 s."""
    counts = Counts(done=12, left=30, pruned=3, found=2, best="tp 2", started_s=time.monotonic() - 100)
    first, second, third = lines(counts)
    assert first == "runs: 12 done (2 found), 30 left, 3 pruned"
    assert second in ("time to go: about 0:05:00", "time to go: about 0:05:01")
    assert third == "best so far: tp 2"


def test_without_a_pace_nothing_is_promised() -> None:
    assert lines(Counts(left=5))[1:] == ["time to go: unknown", "best so far: none yet"]
