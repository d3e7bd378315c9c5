"""Decode steps of ranks that step together and verify drafted tokens.

Follows multi-token prediction as vLLM and SGLang run it: a verification has k + 1 tokens per sequence, which
attend the same cache, touch more experts, fill the exchange and are all sampled; then the draft runs k times,
first over all tokens of the step, then over one per sequence, with its own experts and exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simserve.experts.maxima import RankMaximum
from simserve.latency.lockstep import Int64, LockstepLatency, RankWork
from simserve.latency.overhead import EngineOverhead
from simserve.latency.overlap import OverlapSpec
from simserve.latency.verifying import VerifyingLatency, graphs_of, with_prompts


class LockstepDrafts(NamedTuple):
    """The passes of a draft on all ranks, without engine overhead."""

    first: LockstepLatency
    """Over all tokens of the step."""
    rest: LockstepLatency
    """Over one token per sequence."""


class SpeculativeLatency(LockstepLatency):
    """Steps of a group whose sequences verify drafts."""

    def __init__(
        self,
        rank: VerifyingLatency,
        overhead: EngineOverhead,
        ranks: int,
        overlap: OverlapSpec,
        *,
        drafts: LockstepDrafts | None = None,
        estimated: tuple[str, ...] = (),
        solve_us: float = 0.0,
    ) -> None:
        """`rank` prices what a rank computes by itself; without `drafts` these cost nothing."""
        self.queries, self.sampled = rank.queries, rank.sampled
        self._drafts = drafts
        graphs = graphs_of(overhead, rank.queries)
        super().__init__(rank, graphs, ranks, overlap, estimated=estimated, solve_us=solve_us)

    def _draft_ns(self, sequences: Int64, contexts: Int64, maximum: RankMaximum | None) -> Int64:
        drafts, more = self._drafts, self.queries - 2
        if drafts is None:
            return np.zeros(contexts.shape[1], np.int64)
        first_ns = drafts.first.decode_run_ns(sequences, contexts, maximum)[0]
        return first_ns + (more * drafts.rest.decode_run_ns(sequences, contexts, maximum)[0] if more else 0)

    def _mixed_draft_ns(
        self, works: Sequence[RankWork], sequences: Int64, contexts: Int64, maximum: RankMaximum | None
    ) -> int:
        drafts, more = self._drafts, self.queries - 2
        if drafts is None:
            return 0
        first_ns = drafts.first.mixed_step_ns(works, sequences, contexts, maximum)[0]
        ready = [with_prompts(work.decodes, work.decode_context, work.chunks) for work in works]
        ready = [(count, context // count) for count, context in ready if count]
        counts = np.array([*[count for count, _ in ready], *sequences.tolist()], np.int64)
        if not more or not len(counts):
            return first_ns
        means = np.array([*[mean for _, mean in ready], *contexts.tolist()], np.int64)
        return first_ns + more * int(drafts.rest.decode_run_ns(counts, means[:, None], maximum)[0][0])
