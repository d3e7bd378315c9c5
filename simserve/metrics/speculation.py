"""Speculative decoding of each pool: what was drafted, verified and accepted."""

from __future__ import annotations

from dataclasses import dataclass

from simserve.core import Result
from simserve.metrics.window import ratio

DRAFT_DEFINITIONS = {
    "acceptance length": (
        "Tokens per verification: 1 + accepted drafts / verifications, as vLLM and SGLang report it; "
        "accepted drafts beyond the end of an answer count."
    ),
    "acceptance rate": "Accepted drafts / verified drafts.",
    "ITL with speculation": (
        "The tokens that a step accepts leave together: a gap lies between two steps of an answer, not "
        "between two tokens. TPOT is per token as ever."
    ),
}


@dataclass(frozen=True)
class DraftUse:
    """One pool over the whole run."""

    pool: str
    verifications: int
    """Sequences that verified drafts, over all steps."""
    drafted_tokens: int
    accepted_tokens: int
    acceptance_length: float | None
    acceptance_rate: float | None
    verified_per_step: float | None
    """Sequences that verified drafts in a step, mean over the pool's steps."""


def draft_uses(result: Result) -> list[DraftUse]:
    """Return one row per pool that speculates."""
    rows = []
    for name in dict.fromkeys(replica.pool for replica in result.replicas):
        members = [replica for replica in result.replicas if replica.pool == name]
        found = [replica.drafting for replica in members if replica.drafting is not None]
        if not found:
            continue
        verifications = sum(one.verifications for one in found)
        drafted = sum(one.drafted_tokens for one in found)
        accepted = sum(one.accepted_tokens for one in found)
        rows.append(
            DraftUse(
                pool=name,
                verifications=verifications,
                drafted_tokens=drafted,
                accepted_tokens=accepted,
                acceptance_length=ratio(verifications + accepted, verifications),
                acceptance_rate=ratio(accepted, drafted),
                verified_per_step=ratio(verifications, sum(replica.steps for replica in members)),
            )
        )
    return rows
