"""KV tiers below HBM, as reported: what each gave to the prompts, what moved, and if its links kept up."""

from __future__ import annotations

from dataclasses import dataclass

from simserve.core import Result, Status, TierResult


@dataclass(frozen=True)
class TierUse:
    """One tier of one replica over the whole run."""

    replica: str
    kind: str
    shared_by: str
    capacity_blocks: int
    used_blocks: int
    """Blocks in the store at the end, whoever put them there."""
    hit_tokens: int
    """Prompt tokens loaded instead of computed, those of preempted requests included."""
    hit_rate: float | None
    """hit_tokens / prompt tokens of the replica's completed requests."""
    refused_tokens: int
    """Prompt tokens that were found and computed nevertheless, because that was faster."""
    read_bytes: int
    written_bytes: int
    read_link: float | None
    """Share of the run in which the links were busy with reads, of all replicas that share them."""
    write_link: float | None
    """The same for writes; above 1 the link did not keep up with what was written."""


def tier_uses(result: Result) -> list[TierUse]:
    """Return one row per replica and tier, in the result's order; none without tiers."""
    return [
        _use(result, index, replica.name, tier)
        for index, replica in enumerate(result.replicas)
        for tier in replica.kv_tiers
    ]


def tier_warnings(uses: list[TierUse]) -> list[str]:
    """Return a warning for each link that was asked for more writes than it can do."""
    return [
        f"KV tier {use.kind} of {use.replica}: writing all that was evicted takes {use.write_link:.2f} times "
        "as long as the run; many blocks are found too late, or dropped before they are written"
        for use in uses
        if use.write_link is not None and use.write_link > 1
    ]


def _use(result: Result, index: int, name: str, tier: TierResult) -> TierUse:
    rows = (result.replica == index) & (result.status == Status.COMPLETED)
    prompt_tokens = int(result.prompt_tokens[rows].sum())
    arrivals = result.arrival_ns[result.arrival_ns >= 0]
    duration_ns = result.end_ns - int(arrivals.min()) if len(arrivals) else 0
    return TierUse(
        replica=name,
        kind=tier.kind,
        shared_by=tier.shared_by,
        capacity_blocks=tier.capacity_blocks,
        used_blocks=tier.used_blocks,
        hit_tokens=tier.hit_tokens,
        hit_rate=tier.hit_tokens / prompt_tokens if prompt_tokens else None,
        refused_tokens=tier.refused_tokens,
        read_bytes=tier.read_bytes,
        written_bytes=tier.written_bytes,
        read_link=tier.read_link_ns / duration_ns if duration_ns else None,
        write_link=tier.write_link_ns / duration_ns if duration_ns else None,
    )
