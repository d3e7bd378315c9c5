"""Microbatches that circle between attention and FFN GPUs: how long a step takes, in closed form.

A microbatch passes four stations per layer, each of which serves one microbatch at a time: attention, the
network out, the FFN, the network back (MegaScale-Infer, arXiv 2504.02263; Step-3, arXiv 2507.19427). With
microbatches alike, the end of the last one is the longest path through the events of all layers L and
microbatches m. A path either goes round with one microbatch (c, the sum of the stations, for m microbatches
less on its way) or waits at the slowest station (b each). So

    T = L max(c, m b) + min((m - 1) b, c - b):

a layer lasts one round trip or the work of the slowest station, whichever is longer, and the last term fills
the pipeline. Where layers differ, each kind counts for itself and the fill is that of the longest; the error
is below one round trip where kinds meet (the tests run the recurrence itself).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simserve.latency.grid import Float64


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
