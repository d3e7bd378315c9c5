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
from simserve.latency.two_batch import Half, Order, order_of

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
    order: Literal["engine", "vllm", "sglang", "ideal"] = Field(
        "engine",
        description="two_batch: which half waits for what, as the engine orders its kernels; ideal: "
        "nobody waits.",
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


def two_batches(half: Parts, core: Ns, order: Order, prompts: bool) -> Ns:
    """Return the time of two halves that take turns on the wire, in an engine's `order` (see `two_batch`).

    `core` (int64[k]) is the part of the local work from the attention core to dispatch. While one half's
    exchange occupies multiprocessors, the other computes with the rest.
    """
    wire = half.dispatch + half.combine
    compute = half.local + (half.shared + half.experts)
    slower = np.ones(len(half.local))
    if half.sms:
        slower += np.minimum(compute * half.sms / (1 - half.sms), wire * half.sms) / np.maximum(compute, 1)
    times = Half(
        (half.local - core) * slower,
        core * slower,
        half.shared * slower,
        half.experts * slower,
        np.float64(half.dispatch),
        np.float64(half.combine),
    )
    return np.rint(order_of(order, prompts)(times)).astype(np.int64)


NO_OVERRIDES = OverlapSpec.model_validate({})
"""The defaults."""
