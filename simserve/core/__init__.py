"""The nouns that every layer shares: Request, Batch, Trace, Result."""

from simserve.core.batch import Batch, Chunk, Wait
from simserve.core.request import Request
from simserve.core.result import Result, Status, TokenGaps
from simserve.core.split_result import LinkResult, SplitColumns, SplitResult
from simserve.core.totals import GroupResult, PoolFacts, ReplicaResult, TierResult, Timeline
from simserve.core.trace import Trace, TraceOrigin
from simserve.core.waiting import WaitReason

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
