"""The nouns that every layer shares: Request, Batch, Trace, Result."""

from simserve.core.batch import Batch, Chunk, Wait
from simserve.core.request import Request, WaitReason
from simserve.core.result import LinkResult, Result, SplitColumns, SplitResult, Status, TokenGaps
from simserve.core.totals import GroupResult, PoolFacts, ReplicaResult, TierResult, Timeline
from simserve.core.trace import Trace, TraceOrigin

__all__ = [
    "Batch",
    "Chunk",
    "GroupResult",
    "LinkResult",
    "PoolFacts",
    "ReplicaResult",
    "Request",
    "Result",
    "SplitColumns",
    "SplitResult",
    "Status",
    "TierResult",
    "Timeline",
    "TokenGaps",
    "Trace",
    "TraceOrigin",
    "Wait",
    "WaitReason",
]
