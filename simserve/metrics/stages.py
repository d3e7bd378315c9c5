"""The stages of a request under a prefill/decode split: from its arrival to its first token, exactly.

Five stages, in ns and without gaps: waiting for prefill, prefill, transfer (hand-shake included, as far as it
is not hidden behind prefill), waiting at the decode replica (for room before the transfer, for a place in the
batch after it), and the first decode step. Where the decode side must have room first, that wait comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.core import LinkResult, Result, SplitColumns, Status
from simserve.metrics.distribution import Distribution, of_values
from simserve.units import NS_PER_MS, NS_PER_S

Int64 = NDArray[np.int64]

BUSY = 0.9
"""Share of the run from which on a link is called busy."""
STAGES = ("prefill_queue", "prefill", "transfer", "decode_queue", "first_step")

STAGE_DEFINITIONS = {
    "prefill queue": (
        "Waiting for prefill: from the arrival (or from when the decode side had room, where an engine wants "
        "that first) until the prompt is first scheduled on its prefill replica."
    ),
    "prefill": "From being first scheduled on the prefill replica to the end of the prompt.",
    "transfer": (
        "From the end of the prompt, or from room on the decode side if that came later, until the last KV "
        "has arrived: hand-shake included, what moved during prefill not."
    ),
    "decode queue": (
        "Waiting at the decode replica: for room before the transfer, for a place in a step after it."
    ),
    "first decode step": (
        "From being scheduled on the decode replica to the first token that the client sees; 0 where the "
        "prefill side samples that token and the decode side only shows it."
    ),
}


@dataclass(frozen=True)
class LinkUse:
    """One direction of one replica's links over the whole run."""

    replica: str
    direction: str
    gb_per_s: float
    """GB/s that all links together achieve."""
    moved_gb: float
    busy: float | None
    """Share of the run in which something was on its way."""
    use: float | None
    """Moved bytes / what could have been moved."""


@dataclass(frozen=True)
class SplitSummary:
    """What a report says of a split."""

    requests: int
    """Completed requests that were split."""
    kept_local: int
    failed_transfers: int
    role_changes: int
    first_token: str
    stages_ms: dict[str, Distribution]
    """By the names of `STAGES`; they add up to the TTFT of every request."""
    transfer_gb: float
    """GB that moved."""
    transfer_ms_per_gb: float | None
    decode_cached_tokens: int
    """Prompt tokens that did not move because the decode side had them."""
    links: list[LinkUse]


def stage_columns(result: Result) -> dict[str, Int64]:
    """Return the stages of each request in ns by the names of `STAGES`; -1 for requests that were not split.

    A request without a first token (an empty answer) ends its last stage with the end of its prompt.
    """
    assert result.split is not None
    c = result.split.columns
    rows = split_rows(result)
    shown = np.where(result.first_token_ns >= 0, result.first_token_ns, result.last_token_ns)
    first_ns = np.where(result.split.room_first, c.room_ns, result.arrival_ns)
    start_ns = np.maximum(c.room_ns, c.prefill_end_ns)
    stages = {
        "prefill_queue": c.prefill_scheduled_ns - first_ns,
        "prefill": c.prefill_end_ns - c.prefill_scheduled_ns,
        "transfer": c.transfer_end_ns - start_ns,
        "decode_queue": (first_ns - result.arrival_ns)
        + (start_ns - c.prefill_end_ns)
        + (c.decode_scheduled_ns - c.transfer_end_ns),
        "first_step": shown - c.decode_scheduled_ns,
    }
    return {name: np.where(rows, values, -1) for name, values in stages.items()}


def split_rows(result: Result) -> NDArray[np.bool_]:
    """Return which requests were split and completed."""
    assert result.split is not None
    return (result.split.columns.prefill_replica >= 0) & (result.status == Status.COMPLETED)


def split_summary(result: Result, start_ns: int, end_ns: int) -> SplitSummary | None:
    """Return what to say of a split; None without one. The run lasts from `start_ns` to `end_ns`."""
    if result.split is None:
        return None
    split, rows = result.split, split_rows(result)
    stages = {name: values[rows] / NS_PER_MS for name, values in stage_columns(result).items()}
    moved = int(split.columns.transfer_bytes.sum())
    total_ms = float(stages["transfer"].sum())
    return SplitSummary(
        requests=int(rows.sum()),
        kept_local=split.kept_local,
        failed_transfers=split.failed_transfers,
        role_changes=split.role_changes,
        first_token=split.first_token,
        stages_ms={name: of_values(values) for name, values in stages.items()},
        transfer_gb=moved / 1e9,
        transfer_ms_per_gb=total_ms / (moved / 1e9) if moved else None,
        decode_cached_tokens=_cached(split.columns, rows),
        links=[_link(link, (end_ns - start_ns) / NS_PER_S) for link in split.links if link.moved_bytes],
    )


def split_warnings(split: SplitSummary | None) -> list[str]:
    """Return what must be said of links that could not keep up, and of transfers that failed."""
    if split is None:
        return []
    busy = [link for link in split.links if link.busy is not None and link.busy > BUSY]
    lines = [
        f"links of {link.replica} ({link.direction}, {link.gb_per_s:.4g} GB/s) are busy "
        f"{100 * (link.busy or 0):.0f} % of the run: they limit it"
        for link in busy
    ]
    if split.failed_transfers:
        lines.append(f"{split.failed_transfers:,} transfers of KV failed")
    return lines


def _cached(columns: SplitColumns, rows: NDArray[np.bool_]) -> int:
    return int(columns.decode_cached_tokens[rows].sum())


def _link(link: LinkResult, seconds: float) -> LinkUse:
    return LinkUse(
        replica=link.replica,
        direction=link.direction,
        gb_per_s=link.bytes_per_s / 1e9,
        moved_gb=link.moved_bytes / 1e9,
        busy=link.busy_ns / NS_PER_S / seconds if seconds > 0 else None,
        use=link.moved_bytes / link.bytes_per_s / seconds if seconds > 0 else None,
    )
