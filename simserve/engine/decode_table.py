"""Runs of decode steps by look-up: cumulative step times, and how often each entry was used.

One table serves all replicas that share a `StepLatency`. A run of k steps of n sequences is k consecutive
entries of one page: its duration is a difference of two cumulative times, and counting its tokens is two
increments of a difference array. So a run costs the same whatever its length, and the histogram of token gaps
is still exact.
"""

from __future__ import annotations

from array import array
from itertools import accumulate

import numpy as np

from simserve.engine.gaps import GapHistogram
from simserve.latency.base import PAGE, StepLatency


class DecodePage:
    """PAGE consecutive decode steps of a number of sequences."""

    __slots__ = ("cumulative_ns", "steady_tokens", "steps", "tokens")

    def __init__(self, cumulative_ns: array[int]) -> None:
        """`cumulative_ns`: PAGE + 1 times, as from `StepLatency.decode_page`."""
        self.cumulative_ns = cumulative_ns
        self.steps = [0] * (PAGE + 1)
        """Difference array of the times each step was run."""
        self.tokens = [0] * (PAGE + 1)
        """Difference array of the tokens shown by those runs."""
        self.steady_tokens = [0] * (PAGE + 1)

    def count(self, offset: int, steps: int, tokens: int, steady_tokens: int) -> None:
        """Count a run of `steps` steps from `offset` on that showed `tokens` per step after its usual gap."""
        end = offset + steps
        self.steps[offset] += 1
        self.steps[end] -= 1
        self.tokens[offset] += tokens
        self.tokens[end] -= tokens
        self.steady_tokens[offset] += steady_tokens
        self.steady_tokens[end] -= steady_tokens


class DecodeTable:
    """Pages by (sequences, page number), made when first needed."""

    def __init__(self, latency: StepLatency) -> None:
        """`latency` makes the pages."""
        self.latency = latency
        self._pages: dict[tuple[int, int], DecodePage] = {}

    def page(self, sequences: int, number: int) -> DecodePage:
        """Return the page of mean contexts from number * PAGE on."""
        key = (sequences, number)
        page = self._pages.get(key)
        if page is None:
            page = DecodePage(self.latency.decode_page(sequences, number))
            self._pages[key] = page
        return page

    def collect(self, gaps: GapHistogram, steady_gaps: GapHistogram, provenance_ns: dict[str, float]) -> None:
        """Add all runs to the histograms of gaps and to the ns by provenance."""
        for (sequences, number), page in self._pages.items():
            durations = np.diff(np.frombuffer(page.cumulative_ns, dtype=np.int64))
            gaps.add_many(durations, _totals(page.tokens))
            steady_gaps.add_many(durations, _totals(page.steady_tokens))
            shares = self.latency.decode_provenance(sequences, number, _totals(page.steps))
            for name, value in shares.items():
                provenance_ns[name] = provenance_ns.get(name, 0.0) + value
        for name, value in self.latency.step_provenance().items():
            provenance_ns[name] = provenance_ns.get(name, 0.0) + value


def _totals(differences: list[int]) -> np.ndarray:
    return np.fromiter(accumulate(differences[:PAGE]), dtype=np.int64, count=PAGE)
