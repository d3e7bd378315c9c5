"""What the stand-ins for attention libraries share: attention in float64, and checks of their arguments."""

from __future__ import annotations

from typing import Any

import torch


def attend(q: Any, k: Any, v: Any, scale: float, window: int) -> Any:
    """Causal attention of one sequence, queries last: [tokens, heads, d] in float64."""
    group = q.shape[1] // k.shape[1]
    k, v = (part.double().repeat_interleave(group, 1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    place = torch.arange(len(k) - len(q), len(k))[:, None]
    key = torch.arange(len(k))[None]
    hidden = (key > place) | ((key <= place - window) if window else False)
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores.masked_fill(hidden, -torch.inf), -1), v)


def paged(q: Any, caches: Any, table: Any, lengths: Any, starts: Any, scale: float, window: int) -> Any:
    out = []
    for index, length in enumerate(lengths.tolist()):
        k, v = (cache[table[index].long()].flatten(0, 1)[:length] for cache in caches)
        out.append(attend(q[starts[index] : starts[index + 1]], k, v, scale, window))
    return torch.cat(out)


def int32(*tensors: Any) -> None:
    for tensor in tensors:
        assert tensor.dtype == torch.int32, tensor.dtype
