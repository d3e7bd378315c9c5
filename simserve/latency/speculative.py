"""Decode steps that verify drafted tokens: k drafts of a small model, then one step of k + 1 tokens each.

Follows multi-token prediction as SGLang and vLLM run it: the draft is one further layer of the model with its
head, run once per drafted token; the verification has k + 1 queries per sequence, which attend the same cache
(so latent attention becomes more compute-bound), touch more experts, and sample at every position. Left out:
the projection in front of the draft layer, and that the first draft sees all tokens accepted before it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simserve.experts.maxima import RankMaximum
from simserve.latency.base import PAGE
from simserve.latency.blocks.plan import DecodeKernel
from simserve.latency.grid import Float64
from simserve.latency.kernels.attention import DecodeAttention
from simserve.latency.kernels.mla import MlaDecode
from simserve.latency.lockstep import Int64, LockstepLatency
from simserve.latency.overhead import EngineOverhead
from simserve.model.spec import ModelSpec


class SpeculativeLatency(LockstepLatency):
    """Steps of a group whose sequences verify `drafts` tokens each."""

    def __init__(self, target: LockstepLatency, draft: LockstepLatency, drafts: int) -> None:
        """`target` and `draft` are the plain step times of the model and of its draft layer."""
        super().__init__(
            target.rank, target.overhead, target.ranks, target.overlap, estimated=target.estimated
        )
        self.queries = drafts + 1
        self._draft = draft
        self._drafts = drafts

    def attention_page_ns(self, sequences: int, page: int) -> Int64:
        """Return attention of verifying steps, int64[PAGE]."""
        contexts = np.maximum(np.arange(page * PAGE, (page + 1) * PAGE, dtype=np.float64), 1.0)
        total_us = sum(
            layers.times * _verify_us(layers.decode, sequences, contexts, self.queries)
            for layers in self.rank.plan.attention
        )
        return np.rint(1000 * np.asarray(total_us)).astype(np.int64)

    def _draft_ns(self, sequences: Int64, contexts: Int64, maximum: RankMaximum | None) -> Int64:
        return self._drafts * self._draft.decode_run_ns(sequences, contexts, maximum)[0]


def _verify_us(kernel: DecodeKernel, sequences: int, contexts: Float64, queries: int) -> Float64:
    """Return one layer's attention of `queries` tokens of each sequence, which read one cache.

    Queries of a sequence share its keys as heads do: they count as more heads.
    """
    if isinstance(kernel, MlaDecode):
        return kernel.absorbed_many_us(sequences, np.full_like(contexts, queries), contexts)
    if isinstance(kernel, DecodeAttention):
        heads = replace(kernel.heads, q_heads=kernel.heads.q_heads * queries)
        return DecodeAttention(kernel.machine, heads).cost(sequences, contexts).us
    return kernel.cost(sequences * queries, contexts).us


def draft_model(spec: ModelSpec) -> ModelSpec:
    """Return the multi-token-prediction layer as a model of its own: the last layer, embedding and head."""
    last = replace(spec.layers[spec.order[-1]], count=1)
    return replace(spec, name=f"{spec.name} draft", layers=(last,), layer_order=())


def without_overlap(overhead: EngineOverhead) -> EngineOverhead:
    """Return the overhead of an engine whose CPU work is not hidden."""
    return replace(overhead, overlapped=False)
