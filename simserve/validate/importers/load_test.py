"""A load test: what a client measured, request by request where the tool stores that, else as statistics.

Statistics of requests are recomputed with one definition (docs/metrics.md), since tools disagree. Those that
a tool states itself are used only where it stores no requests, under the name of our definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Names = NDArray[np.object_]


@dataclass(frozen=True)
class Requests:
    """Requests that succeeded, columns of length n, in the order of sending where the tool tells it."""

    start_ns: Int64 | None
    """Send times from the first; None if the tool does not store them."""
    prompt_tokens: Int64
    output_tokens: Int64
    ttft_ms: Float64
    """NaN where no first token was seen: missing, not zero."""
    e2e_ms: Float64
    """NaN where the end is not known."""
    gaps_ms: Float64 | None = None
    """Gaps between what the client saw, all requests together; None if the tool does not store them."""
    session: Names | None = None
    """Conversation of each request; None if the tool knows none."""
    content: Names | None = None
    """Equal names: first turns with the same prompt; None if not known."""
    text: Names | None = None
    """The prompts themselves; None if the tool does not store them."""

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def rows(self, order: Int64) -> Requests:
        """Return the requests in another order (gaps belong to none, and stay)."""
        names = (
            "start_ns",
            "prompt_tokens",
            "output_tokens",
            "ttft_ms",
            "e2e_ms",
            "session",
            "content",
            "text",
        )
        columns = {name: getattr(self, name) for name in names}
        return replace(self, **{name: None if c is None else c[order] for name, c in columns.items()})


@dataclass(frozen=True)
class LoadTest:
    """One run of a load generator."""

    source: str
    """File name, with the line or number of the run where a file holds several."""
    format: str
    requests: Requests | None
    """None if the tool stored only statistics."""
    stated: Mapping[str, float] = field(default_factory=dict)
    """The tool's own statistics by our name: `ttft_ms.p99` (ms), `requests_per_s` ..."""
    sent: int | None = None
    """Requests sent, as the tool counts them; warm-up excluded."""
    failed: int = 0
    """Requests that ended with an error."""
    left_out: int = 0
    """Requests of a warm-up, or cancelled on purpose."""
    duration_s: float | None = None
    """Length of the run, as the tool states it."""
    notes: tuple[str, ...] = ()
    """How the tool's words were understood, what was odd, in words."""

    @property
    def completed(self) -> int | None:
        """Requests that succeeded."""
        if self.requests is not None:
            return len(self.requests)
        return None if self.sent is None else self.sent - self.failed
