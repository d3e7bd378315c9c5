"""Steps of attention ranks whose FFN layers run on GPUs of their own, with microbatches on the way between.

Attention-FFN disaggregation as in MegaScale-Infer (arXiv 2504.02263) and Step-3 (arXiv 2507.19427): each rank
splits its batch in microbatches; while one is at the FFN GPUs or on the network, another attends. Every part
is costed at the size of a microbatch, so that splitting can lose. Ranks meet at the FFN, as at any MoE layer.
A step ends when its last microbatch has: the pipeline fills anew in each (engines let microbatches run on).
Embedding, head and sampling count as part of the attention side's work in every layer.
"""

from __future__ import annotations

import numpy as np

from simserve.latency.ffn_side import FfnSide
from simserve.latency.lockstep import Int64, LockstepLatency
from simserve.latency.overhead import EngineOverhead
from simserve.latency.overlap import NO_OVERRIDES, Parts
from simserve.latency.pingpong import pingpong_ns
from simserve.latency.table_latency import TableLatency


class AfdLatency(LockstepLatency):
    """Step times of one group: `ranks` that attend, and the FFN GPUs that they share."""

    def __init__(
        self,
        rank: TableLatency,
        overhead: EngineOverhead,
        ranks: int,
        ffn: FfnSide,
        microbatches: int,
        *,
        estimated: tuple[str, ...] = (),
    ) -> None:
        """`rank` prices attention alone."""
        super().__init__(rank, overhead, ranks, NO_OVERRIDES, estimated=estimated)
        self._moe = ffn
        self._microbatches = microbatches

    def _pieces(self, working: int, fewest: int, most: int, least: int) -> int:
        """Return the microbatches that the fullest rank makes: no more than it has tokens."""
        return -(-most // -(-most // self._microbatches))

    def _compose(
        self, parts: Parts, pieces: int, attention_ns: Int64, run_tokens: int, prompts: bool
    ) -> Int64:
        each_layer = parts.local / parts.layers
        return np.rint(pingpong_ns(each_layer, parts.by_layer, pieces)).astype(np.int64)
