"""The contract between the engine and whatever predicts the duration of a step.

A decode step depends on the number of sequences and on the *mean* of their contexts (whole tokens, rounded
down), so n sequences that decode together walk through consecutive entries of one table. The engine asks
for that table in pages of `PAGE` contexts and turns a run of k steps into one subtraction.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simserve.core import Chunk

PAGE = 1024
"""Contexts per page of a decode table."""

PROVENANCE = ("measured", "interpolated", "extrapolated", "analytic")
"""Where a latency can come from, best first."""


class StepLatency(Protocol):
    """Duration of engine steps of one (model, GPU, parallelism, dtypes, engine); equal replicas share it."""

    stages: int
    """Pipeline stages; step durations are those of the slowest stage."""

    def decode_page(self, sequences: int, page: int) -> array[int]:
        """Return PAGE + 1 cumulative times (int64 ns, first is 0) of steps that only decode.

        Step i of the page has `sequences` sequences with a mean context of page * PAGE + i tokens, the new
        token included. Every step takes at least 1 ns. Pure; the result is kept by the caller.
        """
        ...

    def step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> int:
        """Return the duration of a step with prompt chunks, and book where it came from.

        With no chunks it equals the entry of `decode_page` for decode_context // decodes.
        """
        ...

    def hop_ns(self, tokens: int) -> int:
        """Return the time to hand the activations of `tokens` to the next pipeline stage (0 if one stage)."""
        ...

    def stage_ns(
        self, step_ns: int, decodes: int, decode_context: int, chunks: Sequence[Chunk]
    ) -> Sequence[int]:
        """Return the duration of a step on each pipeline stage; `step_ns` is that of the slowest."""
        ...

    def host_ns(self, sequences: int, chunks: int, running: int) -> int:
        """Return the engine's own time between a result and the step that waits for it: pipelines only.

        `sequences` get a token in that step, `chunks` are its prompt chunks; `running` requests hold KV, in
        other microbatches too.
        """
        ...

    def decode_provenance(self, sequences: int, page: int, visits: NDArray[np.int64]) -> dict[str, float]:
        """Return ns by `PROVENANCE` of the page's steps, each weighted with its visits (int64[PAGE])."""
        ...

    def step_provenance(self) -> dict[str, float]:
        """Return ns by `PROVENANCE` of all that `step_ns` was asked so far."""
        ...
