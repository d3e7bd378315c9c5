"""The nouns that every layer shares: Request, Batch, Trace, Result."""

from simserve.core.batch import Batch, Chunk, Wait
from simserve.core.request import Request
from simserve.core.result import (
    GroupResult,
    LinkResult,
    PoolFacts,
    ReplicaResult,
    Result,
    SplitColumns,
    SplitResult,
    Status,
    TierResult,
    Timeline,
    TokenGaps,
)
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
]
