"""Step latency from a plan of kernels: arrays by token count, decode pages, memoised prompt chunks.

A step takes, per pipeline stage: kernels by token count + head by sequence count + attention of the decoding
sequences + attention of each prompt chunk, then the engine's overhead. Chunks of one step are computed by
one kernel call: each of B chunks costs its share of a batch of B chunks like itself.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.core import Chunk
from simserve.latency.base import PAGE, PROVENANCE
from simserve.latency.blocks.plan import AttentionLayers, Plan
from simserve.latency.mixed import Layers, UnevenDecodes, mixed_calls, padded_sizes
from simserve.latency.overhead import EngineOverhead
from simserve.latency.tables.grid import ANALYTIC, EXTRAPOLATED, Float64, page_contexts, whole_ns
from simserve.latency.tables.roofline import Cost, CountedTimes, LinearOp

Int64 = NDArray[np.int64]

OVERHEAD = len(PROVENANCE)
"""Place of the engine's own time in what is booked."""

FIRST_TOKENS = 8192
FIRST_SEQUENCES = 512
"""Counts priced when compiled; the arrays double when a step is larger."""
FRESH_BATCHES = 8
"""Prompts without cached tokens are priced when compiled, up to so many in a step: nearly all are such."""


class _Page:
    """Decode attention of n sequences at PAGE consecutive mean contexts."""

    __slots__ = ("attention_ns", "tags")

    def __init__(self, attention_ns: Int64, tags: NDArray[np.uint8]) -> None:
        self.attention_ns = array("q", attention_ns.tobytes())
        self.tags = tags.tobytes()


class TableLatency:
    """`StepLatency` of one (model, GPU, parallelism, dtypes, engine). Built by `compile_step_latency`."""

    makes_drafts: bool = False
    """True if its steps also draft tokens."""

    def __init__(
        self,
        plan: Plan,
        overhead: EngineOverhead,
        stages: int = 1,
        hop: LinearOp | None = None,
        estimated: tuple[str, ...] = (),
    ) -> None:
        """`plan` is the slowest stage's; `hop` hands over activations to the next, by tokens."""
        self.plan = plan
        self.overhead = overhead
        self.stages = stages
        self.estimated = estimated
        """What was costed without a measured table, in words."""
        self.stage_latencies: tuple[TableLatency, ...] = (self,)
        """Of each pipeline stage, first to last."""
        self._hop = CountedTimes([hop] if hop is not None else [], 1024)
        self._tokens = CountedTimes(plan.per_token, FIRST_TOKENS)
        self._sequences = CountedTimes(plan.per_sequence, FIRST_SEQUENCES)
        self._pages: dict[tuple[int, int], _Page] = {}
        self._chunks: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._fresh = [self._price_fresh(batch) for batch in range(1, FRESH_BATCHES + 1)]
        """(ns, provenance) of one of 1, 2, ... prompts, by its tokens."""
        self._set_overhead(overhead)
        self.forget()

    def _set_overhead(self, overhead: EngineOverhead) -> None:
        """Turn the overhead into integers, so that stepping and pages cannot round differently."""
        self._graphs = overhead.capture_sizes[-1] if overhead.capture_sizes else 0
        self._padded = padded_sizes(overhead)
        self._launch_ns = round(1000 * overhead.launch_layer_us * self.plan.layers) if self._graphs else 0
        self._step_cpu_ns = round(1000 * overhead.step_us)
        self._sequence_cpu_ns = round(1000 * overhead.sequence_us)
        self._chunk_cpu_ns = round(1000 * overhead.request_us)
        self._gap_ns = round(1000 * (overhead.gap_us - overhead.saved_us))
        uneven = [Layers(layers.tail, layers.times) for layers in self.plan.attention if layers.tail]
        self.uneven = UnevenDecodes(uneven, self._padded) if uneven else None
        """What unequal contexts add; None: steps depend on the sum of contexts alone."""
        self._mixed = mixed_calls(self.plan.attention, self.uneven.walk_ns if self.uneven else 0.0)
        """What decodes add beside prompt chunks; None: as much as alone."""

    # -- the contract -------------------------------------------------------------------------------------

    def decode_page(self, sequences: int, page: int, level_ns: int = 0) -> array[int]:
        """Return PAGE + 1 cumulative times of decode steps (see `StepLatency`).

        `level_ns` is what unequal contexts add to attention (see `uneven`).
        """
        cumulative = np.zeros(PAGE + 1, np.int64)
        np.cumsum(self._decode_steps(sequences, page, level_ns), out=cumulative[1:])
        return array("q", cumulative.tobytes())

    def step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk], longest: int = 0) -> int:
        """Return the duration of a step with prompt chunks (see `StepLatency`).

        `longest` is the longest context of the decodes; 0: as long as the others.
        """
        tokens = sequences = decodes
        attention_ns = 0
        booked = self._booked_ns
        batch = len(chunks)
        fresh = self._fresh[batch - 1] if batch <= FRESH_BATCHES else []
        for _, new, cached, last in chunks:
            tokens += new
            sequences += last
            if not cached and new < len(fresh):
                chunk_ns, tag = fresh[new]
            else:
                key = (batch, new, cached)
                chunk_ns, tag = self._chunks.get(key) or self._price_chunk(key)
            attention_ns += chunk_ns
            booked[tag] += chunk_ns
        if decodes:
            mean = decode_context // decodes
            if batch and self._mixed:
                decode_ns, tag = self._mixed.added_ns(decodes, mean, chunks, attention_ns, longest)
            else:
                page_number, place = divmod(mean, PAGE)
                key = (decodes, page_number)
                page = self._pages.get(key) or self._price_page(key)
                decode_ns, tag = page.attention_ns[place], page.tags[place]
            booked[tag] += decode_ns
            attention_ns += decode_ns

        graph = tokens <= self._graphs
        run_tokens = self._padded[tokens] if graph else tokens
        kernels_ns = self._tokens.at(run_tokens) + self._sequences.at(sequences) + attention_ns
        self._token_visits[run_tokens] += 1
        self._sequence_visits[sequences] += 1

        busy_ns = kernels_ns
        if (batch or not graph) and busy_ns < self._launch_ns:
            busy_ns = self._launch_ns
        cpu_ns = self._step_cpu_ns + self._sequence_cpu_ns * sequences + self._chunk_cpu_ns * batch
        if not self.overhead.overlapped:
            busy_ns += cpu_ns
        elif busy_ns < cpu_ns:
            busy_ns = cpu_ns
        total_ns = max(1, busy_ns + self._gap_ns)
        booked[OVERHEAD] += total_ns - kernels_ns
        return total_ns

    def hop_ns(self, tokens: int) -> int:
        """Return the time to hand the activations of `tokens` to the next pipeline stage."""
        return self._hop.at(tokens) if self.stages > 1 else 0

    def stage_ns(self, step_ns: int, decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> list[int]:
        """Return the duration of a step on each pipeline stage (see `StepLatency`)."""
        by_kind: dict[int, int] = {id(self): step_ns}
        for stage in self.stage_latencies:
            if id(stage) not in by_kind:
                by_kind[id(stage)] = stage.step_ns(decodes, decode_context, chunks)
        return [by_kind[id(stage)] for stage in self.stage_latencies]

    def host_ns(self, sequences: int, chunks: int, running: int) -> int:
        """Return the engine's own time before a step that waits for it (see `StepLatency`)."""
        if not self.overhead.overlapped:
            return 0  # it is part of every step
        visited = running if self.overhead.visits_all else sequences
        return self._step_cpu_ns + self._sequence_cpu_ns * visited + self._chunk_cpu_ns * chunks

    def decode_provenance(
        self, sequences: int, page: int, visits: NDArray[np.int64], level_ns: int = 0
    ) -> dict[str, float]:
        """Return ns by provenance of the page's steps, each weighted with its visits (int64[PAGE])."""
        key = (sequences, page)
        attention = self._pages.get(key) or self._price_page(key)
        weighted = np.frombuffer(attention.attention_ns, np.int64) * visits
        total = np.bincount(np.frombuffer(attention.tags, np.uint8), weights=weighted, minlength=4)
        run_tokens = self._padded[sequences] if sequences <= self._graphs else sequences
        total += self._counted_parts(run_tokens, sequences) * int(visits.sum())
        total[EXTRAPOLATED] += float(level_ns) * int(visits.sum())
        whole = float((self._decode_steps(sequences, page, level_ns) * visits).sum())
        total[ANALYTIC] += whole - total.sum()
        return dict(zip(PROVENANCE, total.tolist(), strict=True))

    def step_provenance(self) -> dict[str, float]:
        """Return ns by provenance of all that `step_ns` was asked so far."""
        total = np.array(self._booked_ns[:OVERHEAD], np.float64)
        total[ANALYTIC] += self._booked_ns[OVERHEAD]
        for counted, visits in ((self._tokens, self._token_visits), (self._sequences, self._sequence_visits)):
            for count, times in visits.items():
                total += counted.parts_ns(count) * times
        return dict(zip(PROVENANCE, total.tolist(), strict=True))

    def forget(self) -> None:
        """Drop what was booked so far."""
        self._booked_ns = [0, 0, 0, 0, 0]
        self._token_visits: defaultdict[int, int] = defaultdict(int)
        self._sequence_visits: defaultdict[int, int] = defaultdict(int)

    @property
    def booked_ns(self) -> list[int]:
        """What `step_ns` was asked so far: attention by `PROVENANCE`, then what the engine added."""
        return self._booked_ns

    @property
    def token_visits(self) -> Mapping[int, int]:
        """How often `step_ns` was asked for each number of tokens that ran."""
        return self._token_visits

    @property
    def sequence_visits(self) -> Mapping[int, int]:
        """The same for sequences that got a token."""
        return self._sequence_visits

    def decode_counts(self, sequences: int) -> tuple[int, int]:
        """Return the tokens that run, and those that are sampled, in a step that only decodes."""
        return (self._padded[sequences] if sequences <= self._graphs else sequences), sequences

    def quietly_step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> int:
        """Return what `step_ns` does, without booking it."""
        booked = list(self._booked_ns), self._token_visits.copy(), self._sequence_visits.copy()
        try:
            return self.step_ns(decodes, decode_context, chunks)
        finally:
            self._booked_ns, self._token_visits, self._sequence_visits = booked

    def attention_page_ns(self, sequences: int, page: int) -> Int64:
        """Return attention alone of the steps of `decode_page`, int64[PAGE]."""
        key = (sequences, page)
        return np.frombuffer((self._pages.get(key) or self._price_page(key)).attention_ns, np.int64)

    def tokens_ns(self, count: int) -> int:
        """Return the kernels that depend on the tokens of a step only."""
        return self._tokens.at(count)

    def sequences_ns(self, count: int) -> int:
        """Return the kernels that depend on the sequences that get a token only."""
        return self._sequences.at(count)

    # -- how ----------------------------------------------------------------------------------------------

    def _decode_steps(self, sequences: int, page: int, level_ns: int = 0) -> Int64:
        """Return the duration of each step of a page, int64[PAGE]: what `step_ns` says, vectorised."""
        key = (sequences, page)
        attention = self._pages.get(key) or self._price_page(key)
        graph = sequences <= self._graphs
        run_tokens = self._padded[sequences] if graph else sequences
        counted_ns = self._tokens.at(run_tokens) + self._sequences.at(sequences)
        busy_ns = np.frombuffer(attention.attention_ns, np.int64) + (counted_ns + level_ns)
        if not graph:
            busy_ns = np.maximum(busy_ns, self._launch_ns)
        cpu_ns = self._step_cpu_ns + self._sequence_cpu_ns * sequences
        busy_ns = np.maximum(busy_ns, cpu_ns) if self.overhead.overlapped else busy_ns + cpu_ns
        return np.maximum(1, busy_ns + self._gap_ns)

    def _counted_parts(self, run_tokens: int, sequences: int) -> Float64:
        """Return ns by provenance of the kernels by count, float64[4]."""
        return self._tokens.parts_ns(run_tokens) + self._sequences.parts_ns(sequences)

    def _price_page(self, key: tuple[int, int]) -> _Page:
        sequences, page = key
        context = page_contexts(page, PAGE)
        total_us: Float64 = np.zeros(PAGE)
        tags = np.zeros(PAGE, np.uint8)
        for layers in self.plan.attention:
            cost = self.attention_cost(layers, sequences, context)
            total_us += cost.us * layers.times
            np.maximum(tags, cost.tags, out=tags)
        made = self._pages[key] = _Page(whole_ns(total_us), tags)
        return made

    def attention_cost(self, layers: AttentionLayers, sequences: int, context: Float64) -> Cost:
        """Return one layer's attention of decoding sequences of equal context (float64[n])."""
        if self.uneven is None or layers.tail is None:
            return layers.decode.cost(sequences, context)
        return self.uneven.decode_cost(layers.tail, layers.decode, sequences, context)

    def _price_fresh(self, batch: int) -> list[tuple[int, int]]:
        """Return (ns, provenance) of one of `batch` prompts of 0, 1, ... tokens, none of them cached."""
        lengths = np.arange(1.0, FIRST_TOKENS + 1)
        total_us, worst = np.zeros(FIRST_TOKENS), np.zeros(FIRST_TOKENS, np.uint8)
        for layers in self.plan.attention:
            cost = layers.prefill.fresh(batch, lengths)
            total_us += cost.us * layers.times
            np.maximum(worst, cost.tags, out=worst)
        return [(0, 0), *zip(whole_ns(total_us).tolist(), worst.tolist(), strict=True)]

    def _price_chunk(self, key: tuple[int, int, int]) -> tuple[int, int]:
        total_us, worst = 0.0, 0
        for layers in self.plan.attention:
            us, tag = layers.prefill.chunk_us(*key)
            total_us += us * layers.times
            worst = max(worst, tag)
        made = self._chunks[key] = (round(total_us * 1000), worst)
        return made
