"""Steps of ranks that meet at every MoE layer: the slowest rank, the exchange, the busiest expert rank.

A step is sum over layers of [slowest rank + dispatch + busiest experts + combine] (SGLang and vLLM with
DP-attention). Layers are taken to be alike, so the slowest rank of a step is slowest in each of its layers.
With CUDA graphs, and with microbatches, all ranks run at the (padded) size of the fullest one, idle ranks too
(dummy batches); so an idle rank is never the slowest, and costs nothing but the graph of the others.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.core import Chunk
from simserve.experts.rank_load import RankMaximum
from simserve.latency.base import PAGE
from simserve.latency.ffn_side import FfnSide
from simserve.latency.lockstep_totals import MIXED, AttentionPages, LockstepBooks, StepNote
from simserve.latency.moe import MoeLayers
from simserve.latency.overhead import EngineOverhead
from simserve.latency.overlap import Order, OverlapSpec, Parts, beside, serial, two_batches
from simserve.latency.step_time import TableLatency
from simserve.latency.tables.roofline import CountedTimes

Int64 = NDArray[np.int64]


class RankWork(NamedTuple):
    """What one rank computes in a step."""

    decodes: int
    decode_context: int
    chunks: Sequence[Chunk]


class LockstepLatency:
    """Step times of one group of `ranks`; equal groups share it. Built by `compile_lockstep_latency`."""

    stages = 1
    queries = 1
    """Tokens that a decoding sequence computes in a step."""
    sampled = 1
    """Those of them that pass the head."""

    def __init__(
        self,
        rank: TableLatency,
        overhead: EngineOverhead,
        ranks: int,
        overlap: OverlapSpec,
        *,
        estimated: tuple[str, ...] = (),
        solve_us: float = 0.0,
    ) -> None:
        """`rank` prices what a rank computes by itself, without overhead; its plan has the rest.

        `solve_us` comes before the dispatch of each MoE layer.
        """
        self.rank = rank
        self.overhead = overhead
        self.ranks = ranks
        self.overlap = overlap
        self.estimated = estimated
        groups = rank.plan.groups
        self._moe: MoeLayers | FfnSide = MoeLayers(groups, ranks, solve_us)
        besides = [op for group in groups for op in group.beside]
        self._beside = CountedTimes(besides, 1024) if besides and overlap.scmoe == "auto" else None
        after = [op for op in rank.plan.per_token if op.core_to_dispatch]
        self._after = CountedTimes(after, 1024)
        self._order: Order = overhead.two_batch if overlap.order == "engine" else overlap.order
        attentions = sum(layers.times for layers in rank.plan.attention)
        self._beside_share = sum(group.beside_attentions for group in groups) / max(1, attentions)
        self._pages = AttentionPages(lambda sequences, page: self.attention_page_ns(sequences, page))
        self._books = LockstepBooks(rank, self._pages)
        self._graphs = overhead.capture_sizes[-1] if overhead.capture_sizes else 0
        self._launch_ns = round(1000 * overhead.launch_layer_us * rank.plan.layers) if self._graphs else 0
        self._step_cpu_ns = round(1000 * overhead.step_us)
        self._sequence_cpu_ns = round(1000 * overhead.sequence_us)
        self._chunk_cpu_ns = round(1000 * overhead.request_us)
        self._gap_ns = round(1000 * (overhead.gap_us - overhead.saved_us))

    # -- steps --------------------------------------------------------------------------------------------

    def decode_run_ns(
        self, sequences: Int64, contexts: Int64, maximum: RankMaximum | None
    ) -> tuple[Int64, StepNote]:
        """Return the durations of k steps that only decode, int64[k], and a note on the first.

        `sequences`: int64[r], 1 or more, of the ranks that decode; `contexts`: int64[r, k], their mean
        contexts in each step (new token included). `maximum` knows the busiest expert rank; None: all even.
        """
        most, total = int(sequences.max()), int(sequences.sum())
        queries = self.queries
        fewest = queries * int(sequences.min())
        pieces = self._pieces(len(sequences), fewest, most, self.overlap.min_decode_tokens)
        shown = -(-sequences // pieces)
        most_shown = queries * int(shown.max())
        total *= queries
        attention = self._pages.at(shown, contexts)
        local = attention + self._by_sequences(self.sampled * shown)[:, None]
        graph = most_shown <= self._graphs
        run_tokens = self.overhead.padded(most_shown) if graph else most_shown
        if graph or pieces > 1:  # all ranks run at the size of the fullest
            slowest = local.max(axis=0) + self.rank.tokens_ns(run_tokens)
        else:
            slowest = (local + self._by_tokens(queries * shown)[:, None]).max(axis=0)
        parts = self._parts(slowest, most_shown, -(-total // pieces), maximum)
        kernels_ns = self._compose(parts, pieces, attention.max(axis=0), run_tokens, False)
        kernels_ns = self._with_drafts(kernels_ns, sequences, contexts, maximum)
        cpu_ns = self._step_cpu_ns + self._sequence_cpu_ns * most
        late = local.argmax(axis=0)
        rows = self._pages.row_of(shown[late], contexts[late, np.arange(len(late))])
        note = self._note(parts, pieces, total, most_shown, rows)
        return self._with_overhead(kernels_ns, cpu_ns, not graph), note

    def mixed_step_ns(
        self,
        works: Sequence[RankWork],
        sequences: Int64,
        contexts: Int64,
        maximum: RankMaximum | None,
    ) -> tuple[int, StepNote]:
        """Return the duration of a step in which some ranks compute prompt chunks, and a note on it.

        `works` are those of the ranks with chunks; the others that decode have `sequences` (int64[r]) with
        mean `contexts` (int64[r]).
        """
        queries = self.queries
        counts = [queries * work.decodes + sum([chunk.tokens for chunk in work.chunks]) for work in works]
        most = max(max(counts), queries * int(sequences.max(initial=0)))
        fewest = min(min(counts), queries * int(sequences.min(initial=most)))
        total = sum(counts) + queries * int(sequences.sum())
        working = len(works) + len(sequences)
        pieces = self._pieces(working, fewest, most, self.overlap.min_prefill_tokens)
        most_shown = -(-most // pieces)
        graph = most_shown <= self._graphs
        alike = graph or pieces > 1
        run_tokens = self.overhead.padded(most_shown) if graph else most_shown
        padded_ns = self.rank.tokens_ns(run_tokens)
        slowest = attention = cpu_ns = 0
        for work, count in zip(works, counts, strict=True):
            tokens_ns = self.rank.tokens_ns(count)
            rest_ns = self.rank.step_ns(work.decodes, work.decode_context, work.chunks) - tokens_ns
            if pieces > 1:
                rest_ns, tokens_ns = -(-rest_ns // pieces), self.rank.tokens_ns(-(-count // pieces))
            slowest = max(slowest, rest_ns + (padded_ns if alike else tokens_ns))
            attention = max(attention, rest_ns)
            shown = work.decodes + sum([chunk.last for chunk in work.chunks])
            cpu_ns = max(cpu_ns, self._sequence_cpu_ns * shown + self._chunk_cpu_ns * len(work.chunks))
        if len(sequences):
            shown = -(-sequences // pieces)
            rest = self._pages.at(shown, contexts[:, None])[:, 0] + self._by_sequences(self.sampled * shown)
            local = rest + (padded_ns if alike else self._by_tokens(queries * shown))
            slowest, attention = max(slowest, int(local.max())), max(attention, int(rest.max()))
            cpu_ns = max(cpu_ns, self._sequence_cpu_ns * int(sequences.max()))
        one = np.array([slowest], np.int64)
        parts = self._parts(one, most_shown, -(-total // pieces), maximum)
        kernels_ns = self._compose(parts, pieces, np.array([attention], np.int64), run_tokens, True)
        kernels_ns = self._with_mixed_drafts(kernels_ns, works, sequences, contexts, maximum)
        step_ns = self._with_overhead(kernels_ns, self._step_cpu_ns + cpu_ns, True)
        return int(step_ns[0]), self._note(parts, pieces, total, most_shown, np.array([MIXED]))

    def quietly_step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> int:
        """Return the duration of a step in which every rank does this, experts even; books nothing."""
        if not chunks:
            sequences = np.full(self.ranks, decodes, np.int64)
            contexts = np.full((self.ranks, 1), decode_context // decodes, np.int64)
            return int(self.decode_run_ns(sequences, contexts, None)[0][0])
        works = [RankWork(decodes, decode_context, chunks)] * self.ranks
        none = np.zeros(0, np.int64)
        return self.mixed_step_ns(works, none, none, None)[0]

    # As a replica whose ranks all do the same (`StepLatency`).

    def decode_page(self, sequences: int, page: int) -> array[int]:
        """Return PAGE + 1 cumulative times of decode steps in which every rank has so many sequences."""
        contexts = np.maximum(np.arange(page * PAGE, (page + 1) * PAGE, dtype=np.int64), 1)
        each = np.full(self.ranks, sequences, np.int64)
        durations, _ = self.decode_run_ns(each, np.tile(contexts, (self.ranks, 1)), None)
        return array("q", [0, *np.cumsum(durations).tolist()])

    def step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> int:
        """Return `quietly_step_ns`."""
        return self.quietly_step_ns(decodes, decode_context, chunks)

    def stage_ns(
        self, step_ns: int, decodes: int, decode_context: int, chunks: Sequence[Chunk]
    ) -> Sequence[int]:
        """Return the step's duration: there is one stage."""
        return (step_ns,)

    def host_ns(self, sequences: int, chunks: int, running: int) -> int:
        """Return 0: there is no pipeline."""
        return 0

    def hop_ns(self, tokens: int) -> int:
        """Return 0: there is one stage."""
        return 0

    def decode_provenance(self, sequences: int, page: int, visits: Int64) -> dict[str, float]:
        """Return nothing: groups book their steps by `book`."""
        return {}

    def _pieces(self, working: int, fewest: int, most: int, least: int) -> int:
        """Return the parts that the step is split in: two if every rank has enough to do, else one.

        `working` ranks have `fewest` to `most` tokens; `least` is what the deployment asks of each.
        """
        halved = self.overlap.two_batch and working == self.ranks and fewest >= max(2, least)
        return 2 if halved else 1

    def _compose(
        self, parts: Parts, pieces: int, attention_ns: Int64, run_tokens: int, prompts: bool
    ) -> Int64:
        """Return the time of a step of `pieces` such parts, int64[k]."""
        if pieces > 1:
            core_ns = np.minimum(attention_ns + self._after.at(run_tokens), parts.local)
            return two_batches(parts, core_ns, self._order, prompts)
        if self._beside is not None:
            own = np.rint(attention_ns * self._beside_share).astype(np.int64)
            return beside(parts, own + self._beside.at(run_tokens))
        return serial(parts)

    def _with_overhead(self, kernels_ns: Int64, cpu_ns: int, launches: bool) -> Int64:
        """Add launches outside graphs and the engine's own work, as `TableLatency` does."""
        busy_ns = np.maximum(kernels_ns, self._launch_ns) if launches else kernels_ns
        busy_ns = np.maximum(busy_ns, cpu_ns) if self.overhead.overlapped else busy_ns + cpu_ns
        return np.maximum(1, busy_ns + self._gap_ns)

    def _by_sequences(self, counts: Int64) -> Int64:
        return np.array([self.rank.sequences_ns(n) for n in counts.tolist()], np.int64)

    def _by_tokens(self, counts: Int64) -> Int64:
        return np.array([self.rank.tokens_ns(n) for n in counts.tolist()], np.int64)

    # -- parts --------------------------------------------------------------------------------------------

    def _with_drafts(
        self, kernels_ns: Int64, sequences: Int64, contexts: Int64, maximum: RankMaximum | None
    ) -> Int64:
        """Add what drafts the tokens of each step, int64[k] (nothing here)."""
        return kernels_ns

    def _with_mixed_drafts(
        self,
        kernels_ns: Int64,
        works: Sequence[RankWork],
        sequences: Int64,
        contexts: Int64,
        maximum: RankMaximum | None,
    ) -> Int64:
        """Add the same to a step with prompt chunks (nothing here)."""
        return kernels_ns

    def attention_page_ns(self, sequences: int, page: int) -> Int64:
        """Return attention of a rank's decode steps, int64[PAGE]."""
        return self.rank.attention_page_ns(sequences, page)

    def _parts(self, slowest: Int64, most: int, total: int, maximum: RankMaximum | None) -> Parts:
        return self._moe.parts(slowest, most, total, maximum, self.overlap.shared_expert)

    # -- the books ----------------------------------------------------------------------------------------

    def _note(self, parts: Parts, pieces: int, total: int, most: int, rows: Int64) -> StepNote:
        by_tag = self._moe.provenance_ns(most, -(-total // pieces), parts.shared)
        shared, dispatch, experts, combine = (pieces * ns for ns in parts[1:5])
        group_ns = (shared, dispatch, experts, combine)
        return StepNote(pieces * parts.local, rows, group_ns, pieces * by_tag, total)

    def book(self, note: StepNote, steps: int, total_ns: int) -> None:
        """Book the first `steps` of the noted steps, which took `total_ns`."""
        self._books.book(note, steps, total_ns)

    def step_provenance(self) -> dict[str, float]:
        """Return ns by `PROVENANCE` of all that was booked."""
        return self._books.step_provenance()

    def forget(self) -> None:
        """Drop what was booked so far."""
        self._books.forget()
