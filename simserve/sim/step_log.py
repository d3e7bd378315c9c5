"""Every step of a run, for those who want to see them: recorded on request, and else not there at all.

A replica books a run of equal decode steps at once; the log keeps it as one row, and takes it apart into its
steps afterwards, from the same table of step times that the replica walked along.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.core import Batch
from simserve.core.batch import VerifyBatch
from simserve.core.totals import Steps
from simserve.engines.base import Policy
from simserve.latency.base import PAGE
from simserve.sim.meters import Meter
from simserve.sim.replica import Replica
from simserve.sim.step_times import DecodeTable

MOST_STEPS = 200_000
"""Steps that a log holds: about what a viewer of traces shows without stumbling."""

_FIELDS = [field.name for field in fields(Steps)][2:-1]
_START, _END, _STEPS, _SEQUENCES, _CONTEXT = range(5)


class Window(NamedTuple):
    """From when to when steps are recorded: those that overlap it."""

    start_ns: int = 0
    end_ns: int = 1 << 62


class StepLog:
    """Records the steps of the replicas that it watches."""

    def __init__(self, window: Window | None = None, most_rows: int = MOST_STEPS) -> None:
        """`most_rows` over all replicas; recording ends for good when they are full."""
        self.window = window or Window()
        self.rows_left = most_rows
        self.cut_ns: int | None = None
        self._most_steps = most_rows
        self._meters: list[_LoggingMeter] = []

    def watch(self, replicas: Sequence[Replica]) -> None:
        """Record what these replicas do; they have done nothing yet."""
        for replica in replicas:
            meter = _LoggingMeter(self, replica.spec.name, replica.times.table)
            meter.lookahead = replica.meter.lookahead
            replica.outputs.meter = replica.meter = meter
            self._meters.append(meter)

    def result(self) -> Steps:
        """Return the steps; runs of equal steps are taken apart unless that makes too many."""
        tables = [meter.table() for meter in self._meters]
        whole = sum(int(table[:, _STEPS].sum()) for table in tables) > self._most_steps
        if not whole:
            tables = [meter.single_steps(table) for meter, table in zip(self._meters, tables, strict=True)]
        columns = np.concatenate(tables).T
        return Steps(
            tuple(meter.name for meter in self._meters),
            np.repeat(np.arange(len(tables)), [len(table) for table in tables]),
            **dict(zip(_FIELDS, columns, strict=True)),
            cut_ns=self.cut_ns,
        )


class _LoggingMeter(Meter):
    """A meter that also keeps a row per booking."""

    def __init__(self, log: StepLog, name: str, times: DecodeTable) -> None:
        super().__init__()
        self.name = name
        self._log = log
        self._times = times
        self._rows = array("q")

    def run(self, start_ns: int, end_ns: int, policy: Policy, batch: Batch, live: int, steps: int) -> None:
        """Count the steps (see `Meter`) and record them if they lie in the window."""
        super().run(start_ns, end_ns, policy, batch, live, steps)
        self._record(start_ns, end_ns, policy, batch, steps, batch.decode_context)

    def verified(
        self, start_ns: int, end_ns: int, policy: Policy, batch: VerifyBatch, tokens: NDArray[np.int64]
    ) -> None:
        """Count steps that verified drafts (see `Meter`) and record each: their contexts are no series."""
        super().verified(start_ns, end_ns, policy, batch, tokens)
        steps, contexts = len(tokens), batch.context_sums
        ends = [end_ns] if steps == 1 else self._ends(start_ns, batch.decodes, contexts[:steps])
        for begin_ns, stop_ns, context in zip([start_ns, *ends], ends, contexts.tolist(), strict=False):
            self._record(begin_ns, stop_ns, policy, batch, 1, context)

    def _ends(self, start_ns: int, sequences: int, contexts: NDArray[np.int64]) -> list[int]:
        """Return when each step of a run ends."""
        ends = [start_ns]
        for number, offset in zip(*np.divmod(contexts // sequences, PAGE), strict=True):
            times = self._times.page(sequences, int(number)).cumulative_ns
            ends.append(ends[-1] + times[offset + 1] - times[offset])
        return ends[1:]

    def _record(
        self, start_ns: int, end_ns: int, policy: Policy, batch: Batch, steps: int, context: int
    ) -> None:
        """Keep a row if it lies in the window and there is room."""
        log = self._log
        if end_ns < log.window.start_ns or start_ns > log.window.end_ns or log.cut_ns is not None:
            return
        if not log.rows_left:
            log.cut_ns = start_ns
            return
        log.rows_left -= 1
        self._rows.extend(
            (
                start_ns,
                end_ns,
                steps,
                batch.decodes,
                context,
                len(batch.chunks),
                batch.prompt_tokens,
                len(batch.admitted),
                len(batch.preempted),
                policy.running,
                policy.waiting,
                policy.kv_used_blocks,
            )
        )

    def table(self) -> NDArray[np.int64]:
        """Return the rows, int64[n, 12]."""
        return np.array(self._rows, np.int64).reshape(-1, len(_FIELDS))

    def single_steps(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a row per step that overlaps the window."""
        counts = table[:, _STEPS]
        single = np.repeat(table, counts, axis=0)
        first = np.cumsum(counts) - counts
        for row, begin in zip(table[counts > 1].tolist(), first[counts > 1].tolist(), strict=True):
            steps, sequences, context = row[_STEPS], row[_SEQUENCES], row[_CONTEXT]
            number, offset = divmod(context // sequences, PAGE)
            times = self._times.page(sequences, number).cumulative_ns
            ends = row[_START] - times[offset] + np.array(times[offset : offset + steps + 1], np.int64)
            rows = single[begin : begin + steps]
            rows[:, _START], rows[:, _END] = ends[:-1], ends[1:]
            rows[:, _CONTEXT] += sequences * np.arange(steps)
        single[:, _STEPS] = 1
        window = self._log.window
        return single[(single[:, _END] >= window.start_ns) & (single[:, _START] <= window.end_ns)]
