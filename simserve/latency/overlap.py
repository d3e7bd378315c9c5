"""How the parts of a step overlap: what runs one after the other, and what runs beside something else.

All functions take nanoseconds of one whole step (all layers together) of the slowest rank, as int64 arrays
or integers, and return nanoseconds. Layers are taken to be alike: what overlaps in each overlaps in the sum.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from simserve.latency.pingpong import LayerTimes

Ns = NDArray[np.int64]


class Parts(NamedTuple):
    """Times of one step, or of one half of it, in ns."""

    local: Ns
    """What the slowest rank computes by itself: attention, projections, dense MLPs, head."""
    shared: int
    """Shared expert, where it is kept apart."""
    dispatch: int
    experts: int
    """Routed experts on the busiest rank."""
    combine: int
    layers: int
    """MoE layers."""
    sms: float = 0.0
    """Share of multiprocessors that dispatch and combine occupy."""
    by_layer: tuple[LayerTimes, ...] = ()
    """dispatch, experts and combine by kind of layer, where layers cannot be added up (see `pingpong`)."""


class OverlapSpec(BaseModel):
    """What a deployment overlaps."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    shared_expert: bool = Field(
        True, description="Run the shared expert beside dispatch (only where tokens are dispatched)."
    )
    two_batch: bool = Field(
        False, description="Split each step in two: one half computes while the other is on the wire."
    )
    min_decode_tokens: int = Field(
        32, ge=1, description="Tokens of the emptiest rank from which a decode step is split (vLLM: 32)."
    )
    min_prefill_tokens: int = Field(
        512, ge=1, description="The same for steps with prompt chunks (vLLM: 512)."
    )
    scmoe: Literal["auto", "off"] = Field(
        "auto",
        description="Shortcut-connected MoE: where a layer has a second attention and dense MLPs beside its "
        "experts (LongCat), run the MoE branch beside them.",
    )


def serial(parts: Parts) -> Ns:
    """Return the time without two batches; the shared expert runs beside dispatch."""
    first = parts.dispatch if parts.dispatch > parts.shared else parts.shared
    return parts.local + (first + parts.experts + parts.combine)


def beside(parts: Parts, beside_ns: Ns) -> Ns:
    """Return the time when the MoE branch runs beside `beside_ns` of the local work (ScMoE)."""
    branch = parts.dispatch + parts.experts + parts.combine
    return parts.local + parts.shared + np.maximum(0, branch - beside_ns)


def two_batches(half: Parts) -> Ns:
    """Return the time of two halves that take turns: T = max(2 C, 2 M) + fill.

    C computes, M is on the wire; while one half's exchange occupies multiprocessors, the other computes with
    the rest. Fill: in the first layer one half has nothing beside it, in the last neither.
    """
    wire = half.dispatch + half.combine
    compute = half.local + (half.shared + half.experts)
    if half.sms:
        slower = np.minimum(compute * half.sms / (1 - half.sms), wire * half.sms)
        compute = compute + np.rint(slower).astype(np.int64)
    return np.maximum(2 * compute, 2 * wire) + np.minimum(compute, wire) // max(1, half.layers)


NO_OVERRIDES = OverlapSpec.model_validate({})
"""The defaults."""
