"""The nouns that every layer shares: Request, Batch, Trace, Result."""

from simserve.core.batch import Batch, Chunk, Wait
from simserve.core.request import Request
from simserve.core.result import (
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
