"""When a split request passed from one stage to the next; one slot per row of the trace."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from simserve.core import Request, SplitColumns
from simserve.core.result import ABSENT
from simserve.engine.gaps import GapRecorder


class PromptRecorder:
    """What prefill replicas write down, as they would in a `Recorder`: their tokens are not shown."""

    def __init__(self, requests: int) -> None:
        """`requests` rows."""
        self.first_scheduled_ns = _column(requests)
        self.first_token_ns = _column(requests)
        """The end of the prompt."""
        self.cached_tokens = _column(requests, 0)
        self.preemptions = _column(requests, 0)
        self.requeued_ns = _column(requests, 0)
        self.gaps = GapRecorder()

    def is_steady(self, request: Request) -> bool:
        """Return False: gaps are counted on the other side."""
        return False


class StageRecorder:
    """Stamps of split requests."""

    def __init__(self, requests: int) -> None:
        """`requests` rows."""
        self.prefill = PromptRecorder(requests)
        self.prefill_replica = _column(requests)
        self.prefill_end_ns = self.prefill.first_token_ns
        self.room_ns = _column(requests)
        self.transfer_end_ns = _column(requests)
        self.transfer_bytes = _column(requests, 0)
        self.transfer_ok = array("b", [ABSENT]) * requests

    def columns(self, decode: dict[str, NDArray[np.int64]]) -> SplitColumns:
        """Return the columns of the split; make those of the decoding side, `decode`, true for both sides."""
        side = {
            name: np.array(getattr(self.prefill, name), dtype=np.int64)
            for name in ("first_scheduled_ns", "cached_tokens", "preemptions", "requeued_ns")
        }
        split = side["first_scheduled_ns"] >= 0
        columns = SplitColumns(
            prefill_replica=np.array(self.prefill_replica, dtype=np.int64),
            prefill_scheduled_ns=side["first_scheduled_ns"],
            prefill_end_ns=np.array(self.prefill_end_ns, dtype=np.int64),
            room_ns=np.array(self.room_ns, dtype=np.int64),
            transfer_end_ns=np.array(self.transfer_end_ns, dtype=np.int64),
            decode_scheduled_ns=np.where(split, decode["first_scheduled_ns"], ABSENT),
            transfer_bytes=np.array(self.transfer_bytes, dtype=np.int64),
            transfer_ok=np.array(self.transfer_ok, dtype=np.int64),
            decode_cached_tokens=np.where(split, decode["cached_tokens"], 0),
        )
        for name in ("first_scheduled_ns", "cached_tokens"):
            decode[name] = np.where(split, side[name], decode[name])
        for name in ("preemptions", "requeued_ns"):
            decode[name] = decode[name] + side[name]
        return columns


def _column(requests: int, value: int = ABSENT) -> array[int]:
    return array("q", [value]) * requests
