"""A workload as columns: what arrives, when, and how long it is.

Rows are in arrival order. Times are integer nanoseconds from the first arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simserve.errors import TraceError
from simserve.units import NS_PER_S

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class TraceOrigin:
    """Where a trace came from and what its reader assumed, for the report and the manifest."""

    name: str
    """File name, or the generator's description."""
    format: str
    sha256: str = ""
    """Hash of the file as it lies on disk; empty for generated workloads."""
    assumptions: tuple[str, ...] = ()
    """What the reader took for granted (time unit, block size ...), in words."""
    changes: tuple[str, ...] = ()
    """What was dropped, reordered or changed, with counts, in words."""
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Role to the column that was taken for it, where the reader chose among a file's names."""


@dataclass(frozen=True)
class Trace:
    """Requests as columns of length n (see the module's note for order and unit)."""

    arrival_ns: Int64
    """int64[n], not decreasing. For a later turn of a session: not used, the turn follows its answer."""
    prompt_tokens: Int64
    """int64[n], the whole prompt: for a later turn of a session its history is included."""
    output_tokens: Int64
    """int64[n], tokens that the model will produce; 0 is allowed (the prompt is computed, nothing shown)."""
    origin: TraceOrigin
    max_tokens: Int64 | None = None
    """int64[n], most output tokens that the client allows; None if the trace does not say."""
    priority: Int64 | None = None
    session: Int64 | None = None
    """int64[n], dense session number; rows of one session are its turns in order. None: all independent."""
    think_ns: Int64 | None = None
    """int64[n], pause between the end of the previous turn's answer and this turn (0 for first turns)."""
    block_ids: Int64 | None = None
    """int64[sum of blocks], prompt content as ids of `block_tokens` tokens each, all rows one after another.

    Equal ids mean an equal prefix up to and including that block. Recoded densely, so any 64-bit or longer
    id of a file is safe.
    """
    block_offsets: Int64 | None = None
    """int64[n + 1]: row i owns block_ids[block_offsets[i]:block_offsets[i + 1]]."""
    block_tokens: int = 0
    labels: dict[str, NDArray[np.object_]] = field(default_factory=dict[str, NDArray[np.object_]])
    """Further columns kept as text, for export."""

    @classmethod
    def from_arrays(
        cls, arrival_s: ArrayLike, prompt_tokens: ArrayLike, output_tokens: ArrayLike, name: str = "arrays"
    ) -> Trace:
        """Return a trace of independent requests; time 0 is the first arrival, rows are sorted by arrival.

        Raises `TraceError` where lengths differ, a number is negative or none is there.
        """
        seconds = np.asarray(arrival_s, dtype=np.float64)
        lengths = [np.asarray(one, dtype=np.int64) for one in (prompt_tokens, output_tokens)]
        if seconds.ndim != 1 or any(one.shape != seconds.shape for one in lengths):
            raise TraceError(f"{name}: arrivals, prompts and outputs must be columns of one length")
        if (
            not len(seconds)
            or not np.isfinite(seconds).all()
            or (lengths[0] < 1).any()
            or (lengths[1] < 0).any()
        ):
            raise TraceError(
                f"{name}: needs finite arrivals, prompts of 1 token or more, outputs of 0 or more"
            )
        order = np.argsort(seconds, kind="stable")
        arrival_ns = np.rint((seconds[order] - seconds.min()) * NS_PER_S).astype(np.int64)
        return cls(arrival_ns, lengths[0][order], lengths[1][order], TraceOrigin(name, "arrays"))

    def __len__(self) -> int:
        return len(self.arrival_ns)
