"""Schedulers that plan a step while the one before runs: what they see of arrivals is one step old.

With asynchronous scheduling (vLLM), or the overlapped loop (SGLang), the decision for step t + 1 is made when
step t begins. The replica still asks for it when step t ends, which saves it from undoing anything, and keeps
back the arrivals that the engine could not have seen: those of step t are added after that decision.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve.core import Batch, Request
from simserve.core.request import KvMoved
from simserve.engines.base import Policy
from simserve.latency.base import PAGE, StepLatency
from simserve.latency.explain import Decoded, op_times
from simserve.latency.step_time import TableLatency
from simserve.sim.recorder import GapRecorder

if TYPE_CHECKING:
    from simserve.sim.decode_batch import Lane

# Runs of decode steps by look-up: cumulative step times, and how often each entry was used.
#
# One table serves all replicas that share a `StepLatency`. A run of k steps of n sequences is k consecutive
# entries of one page: its duration is a difference of two cumulative times, and its tokens are counted at its
# two ends. So a run costs the same whatever its length, and the histogram of token gaps is still exact.

_MOST_RUNS = 4 * 512
"""Numbers kept of runs that are not folded yet."""
_MOST_SINGLES = 256
"""The same of groups of single steps."""


class DecodePage:
    """PAGE consecutive decode steps of a number of sequences."""

    __slots__ = ("_changes", "_runs", "_singles", "cumulative_ns")

    def __init__(self, cumulative_ns: array[int]) -> None:
        """`cumulative_ns`: PAGE + 1 times, as from `StepLatency.decode_page`."""
        self.cumulative_ns = cumulative_ns
        self._runs = array("q")
        """(first step, step after the last, tokens, steady tokens) of each run since the last fold."""
        self._singles: list[tuple[NDArray[np.int64], int, int]] = []
        """(steps, tokens, steady tokens) of single steps since then."""
        self._changes = np.zeros((3, PAGE + 1), np.int64)
        """Difference arrays of all runs before: times each step was run, and tokens shown."""

    def count(self, offset: int, steps: int, tokens: int, steady_tokens: int) -> None:
        """Count a run of `steps` steps from `offset` on that showed `tokens` per step after its usual gap."""
        self._runs.extend((offset, offset + steps, tokens, steady_tokens))
        if len(self._runs) >= _MOST_RUNS:
            self._fold()

    def count_each(self, entries: NDArray[np.int64], tokens: int, steady_tokens: int) -> None:
        """Count single steps (int64[n], in any order) that each showed so many tokens after its usual gap."""
        self._singles.append((entries, tokens, steady_tokens))
        if len(self._singles) >= _MOST_SINGLES:
            self._fold_singles()

    def totals(self) -> NDArray[np.int64]:
        """Return int64[3, PAGE]: for each step how often it was run, its tokens and its steady tokens."""
        self._fold()
        if self._singles:
            self._fold_singles()
        return np.cumsum(self._changes[:, :PAGE], axis=1)

    def _fold(self) -> None:
        """Add the runs to the difference arrays."""
        first, end, tokens, steady_tokens = np.array(self._runs, np.int64).reshape(-1, 4).T
        self._runs = array("q")
        for changes, amount in zip(self._changes, (1, tokens, steady_tokens), strict=True):
            np.add.at(changes, first, amount)
            np.subtract.at(changes, end, amount)

    def _fold_singles(self) -> None:
        """Do the same with single steps."""
        entries = np.concatenate([entries for entries, _, _ in self._singles])
        sizes = [len(entries) for entries, _, _ in self._singles]
        amounts = np.array([(1, tokens, steady) for _, tokens, steady in self._singles], np.int64)
        self._singles = []
        for changes, amount in zip(self._changes, np.repeat(amounts, sizes, axis=0).T, strict=True):
            np.add.at(changes, entries, amount)
            np.subtract.at(changes, entries + 1, amount)


class DecodeTable:
    """Pages by (sequences, page number), made when first needed."""

    def __init__(self, latency: StepLatency) -> None:
        """`latency` makes the pages."""
        self.latency = latency
        self._pages: dict[tuple[int, ...], DecodePage] = {}

    def page(self, sequences: int, number: int) -> DecodePage:
        """Return the page of mean contexts from number * PAGE on."""
        key = (sequences, number)
        page = self._pages.get(key)
        if page is None:
            page = DecodePage(self.latency.decode_page(sequences, number))
            self._pages[key] = page
        return page

    def collect(self, gaps: GapRecorder, provenance_ns: dict[str, float], op_ns: dict[str, float]) -> None:
        """Add all runs to the histograms of gaps, and to the ns by provenance and by group of kernels."""
        decoded = []
        for (sequences, number, *level), page in self._pages.items():
            durations = np.diff(np.frombuffer(page.cumulative_ns, dtype=np.int64))
            visits, tokens, steady_tokens = page.totals()
            gaps.add_many(durations, tokens, steady_tokens)
            decoded.append(Decoded(sequences, number, visits, durations, *level))
            add_times(provenance_ns, self.latency.decode_provenance(sequences, number, visits, *level))
        add_times(provenance_ns, self.latency.step_provenance())
        if isinstance(self.latency, TableLatency):
            add_times(op_ns, op_times(self.latency, decoded))


class StepTimes:
    """How long the steps of a replica take."""

    def __init__(self, table: DecodeTable) -> None:
        """`table` is shared by replicas of one latency."""
        self.table = table
        self.latency = table.latency

    def step_ns(self, batch: Batch, lane: Lane) -> int:
        """Return the duration of a step with prompt chunks, and of the decodes of `lane`."""
        return self.latency.step_ns(batch.decodes, batch.decode_context, batch.chunks)

    def page_of(self, batch: Batch, lane: Lane) -> tuple[DecodePage, int]:
        """Return the page of step times on which a decode step of `lane` is, and its place there."""
        decodes = batch.decodes
        number, offset = divmod(batch.decode_context // decodes, PAGE)
        return self.table.page(decodes, number), offset


def add_times(totals: dict[str, float], more: Mapping[str, float]) -> None:
    """Add times by name to `totals`."""
    for name, value in more.items():
        totals[name] = totals.get(name, 0.0) + value


class Lookahead:
    """Arrivals of the steps in progress, held until the policy may see them."""

    __slots__ = ("_held", "stepping", "unseen")

    def __init__(self) -> None:
        self._held: list[tuple[Request | KvMoved, int]] = []
        """Arrivals (requests, or news of KV), with the step of the present run in which each came."""
        self.stepping = False
        """True from a decision to compute until the next decision."""
        self.unseen = False
        """True if arrivals were let in after the last decision: it holds for one step only."""

    @property
    def held(self) -> int:
        """Arrivals that the policy has not been told of."""
        return len(self._held)

    def hold(self, request: Request | KvMoved, step: int) -> None:
        """Keep an arrival that came in the `step`-th step of the present run."""
        self._held.append((request, step))

    def steps_run(self, policy: Policy, steps: int) -> None:
        """A run of `steps` steps ended: who came before its last step is seen by the next decision."""
        if not self._held:
            return
        for request, step in self._held:
            if step < steps:
                policy.add(request)
        self._held = [(request, step) for request, step in self._held if step >= steps]

    def decided(self, policy: Policy, computes: bool) -> bool:
        """A decision was made: let the held arrivals in. Return True if it must be made again at once."""
        self.stepping = computes
        self.unseen = bool(self._held)
        if not self._held:
            return False
        for request, _ in self._held:
            policy.add(request)
        self._held = []
        return not computes
