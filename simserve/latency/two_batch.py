"""Two halves of a batch that take turns on the wire, as engines order them.

Kernels of both halves stand in one compute stream, exchanges in one communication stream, and the compute
stream waits where it needs what was received. What is hidden depends on that order (all times of one half):

* vLLM (dual batch overlap, docs/design/dbo.md): each half's attention hides the other's dispatch, experts
  hide the other's dispatch, then combine, and shared expert with the next attention the last combine.
* SGLang, decode (`operations_strategy.py`, two stages apart): shared expert and the other half's projections
  hide dispatch; the other half's attention core hides combine; nothing runs beside the experts.
* SGLang, prefill (halves alternate): as vLLM's until the second half's combine, which only shared experts
  hide.
* ideal: nobody waits, T = max(2 compute, 2 wire).

Layers are taken to be alike, so that sums over layers may be compared. What stands alone in the first and the
last layer is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from simserve.latency.grid import Float64

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
