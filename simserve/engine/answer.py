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

    def __init__(self, request: Request, length: int, steady: bool) -> None:
        """`length` output tokens; `steady` if the request belongs to the steady window."""
        self.request = request
        self.length = length
        self.steady = steady
        self.gone = False
        """Its client gave up: what it gains from now on is shown to nobody."""
        self.seen = 0
        """Tokens shown when it did."""
        self.shown = 0
        """Tokens shown (while decoding: as of joining)."""
        self.shown_ns = 0
        """When the last of them was shown (while decoding: as of joining)."""
        self.lane = 0
        """Lane in which it decodes."""
        self.joined_step = 0
        """Decode step of the lane at which it joined."""
        self.end_step = NOT_DECODING
        """Decode step of the lane after which the answer is complete."""
        self.left_ns = 0
        """When it was last preempted."""
        self.computed_high = 0
        """Most tokens whose KV was ever computed: what a recompute repeats."""
