"""Steps of all replicas in a window of a run, as columns: what a timeline draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """One row per engine step, or per run of equal steps where the steps would be too many.

    Columns have length n, ordered by replica, then by time. Rows of one replica never overlap.
    """

    replicas: tuple[str, ...]
    """Names that `replica` counts."""
    replica: Int64
    start_ns: Int64
    end_ns: Int64
    steps: Int64
    """Engine steps in the row; more than 1 only where runs of steps were kept whole."""
    sequences: Int64
    """Sequences that computed one token each (padding included)."""
    context: Int64
    """Sum over those sequences of the tokens attended, in the row's first step."""
    chunks: Int64
    """Prompts, or parts of prompts, computed in the step."""
    prompt_tokens: Int64
    """Tokens of those chunks."""
    admitted: Int64
    """Requests that left the queue in the step."""
    preempted: Int64
    """Requests whose KV was freed before the step."""
    running: Int64
    """This and the following are those at the end of the run of equal steps that the row belongs to."""
    waiting: Int64
    kv_used_blocks: Int64
    """Blocks held in the first step of that run."""
    cut_ns: int | None = None
    """Time at which recording stopped because there were too many steps; None: it holds the whole window."""

    def __len__(self) -> int:
        return len(self.replica)
