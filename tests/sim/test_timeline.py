"""A timeline that grows long is merged: totals and integrals over time stay what they were."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.core import Timeline
from simserve.sim.recorder import TimelineRecorder

ROWS = 100_000


def integral(line: Timeline, name: str) -> float:
    return float((getattr(line, name) * (line.end_ns - line.start_ns)).sum())


def test_a_short_timeline_is_kept_row_by_row() -> None:
    recorder = TimelineRecorder()
    recorder.add(0, 10, 1, 2.5, 3, 40, 0, 1)
    recorder.add(30, 50, 4, 0, 6, 0, 8, 2)
    line = recorder.result()
    assert line.start_ns.tolist() == [0, 30]
    assert line.end_ns.tolist() == [10, 50]
    assert line.running.tolist() == [1, 4]
    assert line.waiting.tolist() == [2.5, 0]
    assert line.kv_used_blocks.tolist() == [3, 6]
    assert (line.prefill_tokens.tolist(), line.decode_tokens.tolist()) == ([40, 0], [0, 8])
    assert line.steps.tolist() == [1, 2]


@pytest.mark.parametrize("idle_share", [0.0, 0.7])
def test_merging_keeps_totals_and_integrals(idle_share: float) -> None:
    """Also across idle time, which has no rows and counts as nothing."""
    rng = np.random.default_rng(2)
    lengths = rng.integers(1, 1000, ROWS)
    pauses = np.where(rng.random(ROWS) < idle_share, rng.integers(0, 5000, ROWS), 0)
    end_ns = np.cumsum(lengths + pauses)
    counts = rng.integers(0, 100, (3, ROWS))
    tokens = rng.integers(0, 5000, (3, ROWS))
    recorder = TimelineRecorder()
    for row in zip(end_ns - lengths, end_ns, *counts, *tokens, strict=True):
        recorder.add(*row)
    line = recorder.result()
    assert len(line.start_ns) <= 1 << 15, "memory is bounded"
    assert (line.start_ns[1:] >= line.end_ns[:-1]).all()
    assert (line.start_ns[0], line.end_ns[-1]) == (end_ns[0] - lengths[0], end_ns[-1])
    for name, values in zip(("prefill_tokens", "decode_tokens", "steps"), tokens, strict=True):
        assert getattr(line, name).sum() == values.sum()
    for name, values in zip(("running", "waiting", "kv_used_blocks"), counts, strict=True):
        assert integral(line, name) == pytest.approx((values * lengths).sum(), rel=1e-9)
