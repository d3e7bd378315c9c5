"""What the steps of a run spend their time on, as `Summary.operations` names it."""

from __future__ import annotations

from enum import StrEnum


class Operation(StrEnum):
    """A group of kernels, or what else takes a part of a step."""

    DECODE_ATTENTION = "attention, decode steps"
    MIXED_ATTENTION = "attention, steps with prompts"
    PROJECTIONS = "attention projections"
    MLP = "MLP"
    EXPERTS = "experts"
    NORMS = "norms"
    ENDS = "embedding, head, sampling"
    COLLECTIVES = "collectives"
    DISPATCH = "dispatch"
    COMBINE = "combine"
    OTHER = "other kernels"
    ENGINE = "engine overhead"
    ENGINE_AND_DRAFTS = "engine overhead and drafts"


COMMUNICATION = frozenset({Operation.COLLECTIVES, Operation.DISPATCH, Operation.COMBINE})
ATTENTION = frozenset({Operation.DECODE_ATTENTION, Operation.MIXED_ATTENTION})
ENGINE = frozenset({Operation.ENGINE, Operation.ENGINE_AND_DRAFTS})
