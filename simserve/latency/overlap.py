"""How the parts of a step overlap: what runs one after the other, and what runs beside something else.

All functions take nanoseconds of one whole step (all layers together) of the slowest rank, as int64 arrays
or integers, and return nanoseconds. Layers are taken to be alike: what overlaps in each overlaps in the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from simserve.latency.tables.grid import Float64

# Microbatches that circle between attention and FFN GPUs: how long a step takes, in closed form.
#
# A microbatch passes four stations per layer, each of which serves one microbatch at a time: attention, the
# network out, the FFN, the network back (MegaScale-Infer, arXiv 2504.02263; Step-3, arXiv 2507.19427). With
# microbatches alike, the end of the last one is the longest path through the events of all layers L and
# microbatches m. A path either goes round with one microbatch (c, the sum of the stations, for m microbatches
# less on its way) or waits at the slowest station (b each). So
#
#     T = L max(c, m b) + min((m - 1) b, c - b):
#
# a layer lasts one round trip or the work of the slowest station, whichever is longer, and the last term
# fills
# the pipeline. Where layers differ, each kind counts for itself and the fill is that of the longest; the
# error
# is below one round trip where kinds meet (the tests run the recurrence itself).


class LayerTimes(NamedTuple):
    """Times of one microbatch in one of `times` equal layers, in ns, beside its attention."""

    times: int
    out: float
    ffn: float
    back: float


def pingpong_ns(attention: Float64, layers: Sequence[LayerTimes], microbatches: int) -> Float64:
    """Return the time of a step of `microbatches` through all layers, in ns, float64[k].

    `attention` (float64[k]) is what a microbatch computes on the attention side in each layer.
    """
    total, fill = np.zeros_like(attention), np.zeros_like(attention)
    for kind in layers:
        around = attention + (kind.out + kind.ffn + kind.back)
        slowest = np.maximum(attention, max(kind.out, kind.ffn, kind.back))
        total += kind.times * np.maximum(around, microbatches * slowest)
        fill = np.maximum(fill, np.minimum((microbatches - 1) * slowest, around - slowest))
    return total + fill


# Two halves of a batch that take turns on the wire, as engines order them.
#
# Kernels of both halves stand in one compute stream, exchanges in one communication stream, and the compute
# stream waits where it needs what was received. What is hidden depends on that order (all times of one half):
#
# * vLLM (dual batch overlap, docs/design/dbo.md): each half's attention hides the other's dispatch, experts
#   hide the other's dispatch, then combine, and shared expert with the next attention the last combine.
# * SGLang, decode (`operations_strategy.py`, two stages apart): shared expert and the other half's
# projections
#   hide dispatch; the other half's attention core hides combine; nothing runs beside the experts.
# * SGLang, prefill (halves alternate): as vLLM's until the second half's combine, which only shared experts
#   hide.
# * ideal: nobody waits, T = max(2 compute, 2 wire).
#
# Layers are taken to be alike, so that sums over layers may be compared. What stands alone in the first and
# the
# last layer is left out.

Order = Literal["vllm", "sglang", "ideal"]


class Half(NamedTuple):
    """Times of one half in a step, all layers together, in ns: float64[k], or alike in all steps."""

    before: Float64
    """Own work before the attention core: projections, norms."""
    core: Float64
    """Attention core and what follows it until dispatch."""
    shared: Float64
    experts: Float64
    dispatch: np.float64
    combine: np.float64


def vllm(half: Half) -> Float64:
    """Return the time of both halves in vLLM's order."""
    local = half.before + half.core
    return (
        np.maximum(local, half.dispatch)
        + np.maximum(half.experts, half.dispatch)
        + np.maximum(half.shared + half.experts, half.combine)
        + np.maximum(half.shared + local, half.combine)
    )


def sglang_decode(half: Half) -> Float64:
    """Return the time of both halves in SGLang's order of decode steps."""
    hidden = np.maximum(half.shared + half.before, half.dispatch) + np.maximum(half.core, half.combine)
    return 2.0 * (hidden + half.experts)


def sglang_prefill(half: Half) -> Float64:
    """Return the time of both halves in SGLang's order of steps with prompts."""
    local = half.before + half.core
    first_sent = local + half.dispatch
    second_sent = np.maximum(2.0 * local, first_sent) + half.dispatch
    first = np.maximum(2.0 * local, first_sent) + half.experts
    second = np.maximum(first, second_sent) + half.experts
    first_back = np.maximum(first, second_sent) + half.combine
    second_back = np.maximum(second, first_back) + half.combine
    shared = np.maximum(second + half.shared, first_back) + half.shared
    return np.maximum(shared, second_back)


def ideal(half: Half) -> Float64:
    """Return the time of both halves if nobody ever waits."""
    wire = half.dispatch + half.combine
    compute = half.before + half.core + half.shared + half.experts
    return 2.0 * np.maximum(compute, wire)


def order_of(order: Order, prompts: bool) -> Callable[[Half], Float64]:
    """Return the order of a step, with prompts or without."""
    if order == "sglang":
        return sglang_prefill if prompts else sglang_decode
    return {"vllm": vllm, "ideal": ideal}[order]


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
