"""Is a kernel's output right? Compared with float64 before anything is timed.

The output's memory is poisoned with NaN first where the allocator allows it, so that a kernel which leaves a
part unwritten is caught; then the output, or a sample of its rows, is compared with a plain float64
computation.
"""

from __future__ import annotations

import math
from typing import Any

from simserve.profiler.need import need_torch

TOLERANCE = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 2e-2, "fp8": 6e-2, "fp8_block": 6e-2}
"""Largest |output - reference| / |reference| (Euclidean norms): a few units of the dtype's rounding; for fp8
the rounding of activations, which the kernel includes."""
SAMPLED_ROWS = 64


def relative_error(output: Any, reference: Any) -> float:
    """Return |output - reference| / |reference|; infinity if either has NaN, or their shapes differ."""
    torch = need_torch()
    if output.shape != reference.shape:
        return math.inf
    wide = output.to(torch.float64)
    if not bool(torch.isfinite(wide).all() and torch.isfinite(reference).all()):
        return math.inf
    norm = float(torch.linalg.vector_norm(reference))
    return float(torch.linalg.vector_norm(wide - reference)) / max(norm, 1e-30)


def finite(output: Any) -> bool:
    """Return False if a part of the output is NaN or infinite: rows that are not compared count, too."""
    return bool(need_torch().isfinite(output.float()).all())


def sampled(count: int, most: int = SAMPLED_ROWS) -> list[int]:
    """Return up to `most` indices below `count`, evenly spread, first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def poison_for(output: Any) -> None:
    """Leave NaN (or the largest whole number) in freed memory of these tensors' sizes.

    The allocator hands such memory out next, so that a kernel which leaves a part of its output unwritten is
    caught. torch's allocator for GPUs does so always, a CPU's nearly always.
    """
    torch = need_torch()
    parts = output if isinstance(output, tuple | list) else (output,)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    fresh = [torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in tensors]
    for one in fresh:
        if one.dtype.is_floating_point:
            one.copy_(torch.full((1,), math.nan, dtype=torch.float32))
        else:
            one.fill_(torch.iinfo(one.dtype).max)


def attention(queries: Any, keys: Any, values: Any, scale: float, place: Any, window: int = 0) -> Any:
    """Return causal attention in float64: [h, q, dv] from [h, q, d], [h, k, d], [h, k, dv].

    `place` (int64 [q]) are the positions of the queries among the keys; a query sees the keys up to its
    own, at most `window` of them (0: all).
    """
    torch = need_torch()
    q, k, v = (tensor.to(torch.float64) for tensor in (queries, keys, values))
    scores = torch.einsum("hqd,hkd->hqk", q, k) * scale
    place = place[:, None]
    key = torch.arange(k.shape[1], device=q.device)[None, :]
    hidden = key > place
    if window:
        hidden |= key <= place - window
    return torch.einsum("hqk,hkd->hqd", torch.softmax(scores.masked_fill(hidden, -math.inf), -1), v)
