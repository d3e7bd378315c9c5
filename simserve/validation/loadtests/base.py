"""The contract of a measured format: recognise a file by its content, and read the load tests in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simserve.registry import Registry
from simserve.validation.loadtests.json_file import JsonFile, Record

# A load test: what a client measured, request by request where the tool stores that, else as statistics.
#
# Statistics of requests are recomputed with one definition (docs/metrics.md), since tools disagree. Those
# that
# a tool states itself are used only where it stores no requests, under the name of our definition.

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
    """What was odd about the file or its requests, in words."""
    latency_notes: tuple[str, ...] = ()
    """How the tool's words for latencies were understood; a trace made of the requests has none of them."""

    @property
    def completed(self) -> int | None:
        """Requests that succeeded."""
        if self.requests is not None:
            return len(self.requests)
        return None if self.sent is None else self.sent - self.failed


# From the rows that an importer collected to the columns of a load test, in order of sending.

NAN = float("nan")


@dataclass
class Row:
    """One request that succeeded. Times in ns; NaN: not known."""

    start_ns: int
    prompt_tokens: int
    output_tokens: int
    ttft_ns: float
    e2e_ns: float
    gaps_ns: Sequence[float] = ()
    session: str | None = None
    content: str | None = None
    text: str | None = None


def columns(rows: list[Row], gaps_known: bool, starts_known: bool = True) -> Requests:
    """Return the requests; stamps are taken apart as integers, so that no digit of theirs is lost."""
    rows = sorted(rows, key=lambda row: row.start_ns)
    first = rows[0].start_ns if rows else 0
    gaps = [gap for row in rows for gap in row.gaps_ns]
    return Requests(
        start_ns=np.array([row.start_ns - first for row in rows], np.int64) if starts_known else None,
        prompt_tokens=np.array([row.prompt_tokens for row in rows], np.int64),
        output_tokens=np.array([row.output_tokens for row in rows], np.int64),
        ttft_ms=np.array([row.ttft_ns for row in rows], np.float64) / 1e6,
        e2e_ms=np.array([row.e2e_ns for row in rows], np.float64) / 1e6,
        gaps_ms=np.array(gaps, np.float64) / 1e6 if gaps_known else None,
        session=_names([row.session for row in rows]),
        content=_names([row.content for row in rows]),
        text=_names([row.text for row in rows]),
    )


def _names(values: list[str | None]) -> Names | None:
    return np.array(values, object) if values and all(value is not None for value in values) else None


# Names of statistics in the tools' tables, in our words: avg, median, p99 -> mean, p50, p99.

_OURS = {
    "mean": "mean",
    "avg": "mean",
    "median": "p50",
    "p50": "p50",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "max": "max",
}


def statistics_of(record: Record, name: str, scale: float) -> dict[str, float]:
    """Return the statistics of one quantity under our names: `{"ttft_ms.p99": 812.0}`; times `scale`."""
    found: dict[str, float] = {}
    for theirs, ours in _OURS.items():
        if theirs in record:
            found.setdefault(f"{name}.{ours}", scale * record.number(theirs))
    return found


class Importer(Protocol):
    """One format. Stateless."""

    def sniff(self, file: JsonFile) -> bool:
        """Return whether the file is of this format, judged by the keys of its first record."""
        ...

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return the load tests in the file; raises `TraceError` naming place, key and value."""
        ...


IMPORTERS: Registry[type[Importer]] = Registry("format of measurements", "simserve.validation.loadtests")
