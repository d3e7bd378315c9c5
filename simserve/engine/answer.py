"""The model's side of a request: how long its answer will be, and how much of it has been shown.

This is what a scheduler must never see; only the replica, which plays the model, holds it.
"""

from __future__ import annotations

from simserve.core import Request

NOT_DECODING = -1


class Answer:
    """Progress of one answer."""

    __slots__ = (
        "computed_high",
        "end_step",
        "gone",
        "joined_step",
        "lane",
        "left_ns",
        "length",
        "request",
        "seen",
        "shown",
        "shown_ns",
        "steady",
    )
    lane: int
    """Lane in which it decodes; set by `Lane.join`, as is the next."""
    joined_step: int
    """Decode step of the lane at which it joined."""
    left_ns: int
    """When it was last preempted; set then."""
    seen: int
    """Tokens shown when its client gave up; set then."""

    def __init__(self, request: Request, length: int, steady: bool) -> None:
        """`length` output tokens; `steady` if the request belongs to the steady window."""
        self.request = request
        self.length = length
        self.steady = steady
        self.gone = False
        """Its client gave up: what it gains from now on is shown to nobody."""
        self.shown = 0
        """Tokens shown (while decoding: as of joining)."""
        self.shown_ns = 0
        """When the last of them was shown (while decoding: as of joining)."""
        self.end_step = NOT_DECODING
        """Decode step of the lane after which the answer is complete."""
        self.computed_high = 0
        """Most tokens whose KV was ever computed: what a recompute repeats."""
