"""Steps in which each decoding sequence computes several tokens: its last one and drafts to be verified.

Follows speculative decoding as vLLM and SGLang run it: the tokens of a sequence attend one cache, so they
count as heads that share it (latent attention becomes more compute-bound), every kernel by tokens sees all
of them, and each is sampled. CUDA graphs hold whole sequences. Left out: in a step with prompt chunks
attention of the verified sequences is priced as a call of its own, and a sequence whose drafts were cut
short as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simserve.core import Chunk
from simserve.latency.base import PAGE, PROVENANCE
from simserve.latency.blocks.plan import AttentionLayers, DecodeKernel, Plan
from simserve.latency.kernels.decode import DecodeAttention
from simserve.latency.kernels.mla import MlaDecode
from simserve.latency.overhead import EngineOverhead
from simserve.latency.step_time import OVERHEAD, TableLatency
from simserve.latency.tables.grid import ANALYTIC, Float64
from simserve.latency.tables.roofline import Cost

Int64 = NDArray[np.int64]


class Drafts(Protocol):
    """What a replica's steps cost beside verification: the passes that make the next drafts."""

    def decode_ns(self, sequences: int, page: int) -> Int64:
        """Return the drafting of the steps of a decode page, int64[PAGE]."""
        ...

    def step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> int:
        """Return the drafting of a step with prompt chunks, and book where it came from."""
        ...

    def quietly_step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> int:
        """Return what `step_ns` does, without booking it."""
        ...

    def decode_provenance(self, sequences: int, page: int, visits: Int64) -> dict[str, float]:
        """Return ns by provenance of the drafting of a page's steps, each weighted with its visits."""
        ...

    def step_provenance(self) -> dict[str, float]:
        """Return ns by provenance of all that `step_ns` was asked so far."""
        ...

    def forget(self) -> None:
        """Drop what was booked so far."""
        ...


class VerifyingLatency(TableLatency):
    """`StepLatency` of a replica whose sequences compute `queries` tokens each."""

    def __init__(
        self,
        plan: Plan,
        overhead: EngineOverhead,
        queries: int,
        *,
        sampled: int | None = None,
        drafts: Drafts | None = None,
        estimated: tuple[str, ...] = (),
    ) -> None:
        """`sampled` of the tokens of a sequence pass the head (default: all); `drafts` are made besides."""
        self.queries = queries
        self.sampled = queries if sampled is None else sampled
        self.drafts = drafts
        self.makes_drafts = drafts is not None
        self._quiet = False
        """True while nothing is booked."""
        super().__init__(plan, graphs_of(overhead, queries), estimated=estimated)
        self.uneven = None  # calls with several queries per sequence split no context, and pack no heads

    def step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk], longest: int = 0) -> int:
        """Return the duration of a step with prompt chunks (see `StepLatency`; `longest` is not used)."""
        tokens, shown = self.queries * decodes, self.sampled * decodes
        attention_ns, booked, batch, lasts = 0, self._booked_ns, len(chunks), 0
        for _, new, cached, last in chunks:
            tokens += new
            lasts += last
            key = (batch, new, cached)
            chunk_ns, tag = self._chunks.get(key) or self._price_chunk(key)
            attention_ns += chunk_ns
            booked[tag] += chunk_ns
        if decodes:
            number, place = divmod(decode_context // decodes, PAGE)
            page = self._pages.get((decodes, number)) or self._price_page((decodes, number))
            attention_ns += page.attention_ns[place]
            booked[page.tags[place]] += page.attention_ns[place]
        graph = tokens <= self._graphs
        run_tokens = self._padded[tokens] if graph else tokens
        kernels_ns = self._tokens.at(run_tokens) + self._sequences.at(shown + lasts) + attention_ns
        self._token_visits[run_tokens] += 1
        self._sequence_visits[shown + lasts] += 1
        drafts_ns = 0
        if self.drafts:
            ask = self.drafts.quietly_step_ns if self._quiet else self.drafts.step_ns
            drafts_ns = ask(decodes, decode_context, chunks)
        busy_ns = np.array([kernels_ns + drafts_ns])
        total_ns = int(self._with_overhead(busy_ns, decodes + lasts, batch, bool(batch) or not graph)[0])
        booked[OVERHEAD] += total_ns - kernels_ns
        return total_ns

    def quietly_step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> int:
        """Return what `step_ns` does, without booking it."""
        self._quiet = True
        try:
            return super().quietly_step_ns(decodes, decode_context, chunks)
        finally:
            self._quiet = False

    def decode_provenance(
        self, sequences: int, page: int, visits: Int64, level_ns: int = 0
    ) -> dict[str, float]:
        """Return ns by provenance of the page's steps, each weighted with its visits (int64[PAGE])."""
        drafts = self.drafts.decode_provenance(sequences, page, visits) if self.drafts else {}
        return _explained(super().decode_provenance(sequences, page, visits), drafts)

    def step_provenance(self) -> dict[str, float]:
        """Return ns by provenance of all that `step_ns` was asked so far."""
        return _explained(super().step_provenance(), self.drafts.step_provenance() if self.drafts else {})

    def forget(self) -> None:
        """Drop what was booked so far."""
        super().forget()
        if self.drafts:
            self.drafts.forget()

    def _decode_steps(self, sequences: int, page: int, level_ns: int = 0) -> Int64:
        """Return the duration of each step of a page, int64[PAGE]: what `step_ns` says, vectorised."""
        key = (sequences, page)
        attention = self._pages.get(key) or self._price_page(key)
        tokens = self.queries * sequences
        graph = tokens <= self._graphs
        counted_ns = self._tokens.at(self._padded[tokens] if graph else tokens)
        counted_ns += self._sequences.at(self.sampled * sequences)
        busy_ns = np.frombuffer(attention.attention_ns, np.int64) + counted_ns
        if self.drafts:
            busy_ns = busy_ns + self.drafts.decode_ns(sequences, page)
        return self._with_overhead(busy_ns, sequences, 0, not graph)

    def decode_ns(self, sequences: int, page: int) -> Int64:
        """Return the steps of a decode page one by one, int64[PAGE]."""
        return self._decode_steps(sequences, page)

    def _with_overhead(self, busy_ns: Int64, sequences: int, batch: int, launches: bool) -> Int64:
        """Add launches outside graphs and the engine's own work, as `TableLatency` does."""
        if launches:
            busy_ns = np.maximum(busy_ns, self._launch_ns)
        cpu_ns = self._step_cpu_ns + self._sequence_cpu_ns * sequences + self._chunk_cpu_ns * batch
        busy_ns = np.maximum(busy_ns, cpu_ns) if self.overhead.overlapped else busy_ns + cpu_ns
        return np.maximum(1, busy_ns + self._gap_ns)

    def _counted_parts(self, run_tokens: int, sequences: int) -> Float64:
        tokens = self.queries * sequences
        run_tokens = self._padded[tokens] if tokens <= self._graphs else tokens
        return self._tokens.parts_ns(run_tokens) + self._sequences.parts_ns(self.sampled * sequences)

    def decode_counts(self, sequences: int) -> tuple[int, int]:
        """Return the tokens that run, and those that are sampled, in a step that only decodes."""
        tokens = self.queries * sequences
        return (self._padded[tokens] if tokens <= self._graphs else tokens), self.sampled * sequences

    def attention_cost(self, layers: AttentionLayers, sequences: int, context: Float64) -> Cost:
        """Return one layer's attention of sequences that are verified."""
        return verify_cost(layers.decode, sequences, context, self.queries)


class DraftPasses:
    """Drafts of a model: a pass over all tokens of the step, then one per further draft.

    The first pass has the tokens that were verified and the prompts, whose cache the draft needs too.
    """

    def __init__(self, first: VerifyingLatency, rest: TableLatency, drafts: int) -> None:
        """`first` and `rest` are the draft's step times, without engine overhead."""
        self._first = first
        self._rest = rest
        self._more = drafts - 1

    def decode_ns(self, sequences: int, page: int) -> Int64:
        """Return the drafting of the steps of a decode page, int64[PAGE]."""
        rest_ns = np.diff(np.frombuffer(self._rest.decode_page(sequences, page), np.int64))
        return self._first.decode_ns(sequences, page) + self._more * rest_ns

    def step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> int:
        """Return the drafting of a step with prompt chunks."""
        first_ns = self._first.step_ns(decodes, decode_context, chunks)
        decodes, context = with_prompts(decodes, decode_context, chunks)
        return first_ns + (self._more * self._rest.step_ns(decodes, context, ()) if decodes else 0)

    def quietly_step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> int:
        """Return what `step_ns` does, without booking it."""
        first_ns = self._first.quietly_step_ns(decodes, decode_context, chunks)
        decodes, context = with_prompts(decodes, decode_context, chunks)
        return first_ns + (self._more * self._rest.quietly_step_ns(decodes, context, ()) if decodes else 0)

    def decode_provenance(self, sequences: int, page: int, visits: Int64) -> dict[str, float]:
        """Return ns by provenance of the drafting of a page's steps, each weighted with its visits."""
        first, rest = (one.decode_provenance(sequences, page, visits) for one in (self._first, self._rest))
        return {name: ns + self._more * rest[name] for name, ns in first.items()}

    def step_provenance(self) -> dict[str, float]:
        """Return ns by provenance of all that `step_ns` was asked so far."""
        first, rest = self._first.step_provenance(), self._rest.step_provenance()
        return {name: ns + self._more * rest[name] for name, ns in first.items()}

    def forget(self) -> None:
        """Drop what was booked so far."""
        self._first.forget()
        self._rest.forget()


def _explained(found: dict[str, float], drafts: dict[str, float]) -> dict[str, float]:
    """Return ns by provenance when what drafts took, booked as if no kernel explained it, is known."""
    known = {name: ns + drafts.get(name, 0.0) for name, ns in found.items()}
    known[PROVENANCE[ANALYTIC]] -= sum(drafts.values())
    return known


def with_prompts(decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> tuple[int, int]:
    """Return the sequences that get drafts in a step, and their contexts: completed prompts too."""
    lasts = [chunk.cached + chunk.tokens for chunk in chunks if chunk.last]
    return decodes + len(lasts), decode_context + sum(lasts)


def graphs_of(overhead: EngineOverhead, queries: int) -> EngineOverhead:
    """Return the overhead with graphs that hold whole sequences of `queries` tokens (vLLM 0.33).

    The captured sizes rounded up to multiples, and the same numbers of sequences, up to the largest size.
    """
    sizes = overhead.capture_sizes
    if queries == 1 or not sizes:
        return overhead
    wanted = {-(-size // queries) * queries for size in sizes} | {size * queries for size in sizes}
    fitting = tuple(sorted(size for size in wanted if size <= sizes[-1]))
    return replace(overhead, capture_sizes=fitting)


def verify_cost(kernel: DecodeKernel, sequences: int, context: Float64, queries: int) -> Cost:
    """Return the cost of one layer's attention of `queries` tokens of each sequence, which read one cache.

    Tokens of a sequence share its keys as heads do: they count as more heads, and take no less than one.
    """
    if queries == 1:
        return kernel.cost(sequences, context)
    if isinstance(kernel, MlaDecode):
        return kernel.verify_cost(sequences, queries, context)
    if isinstance(kernel, DecodeAttention):
        heads = replace(kernel.heads, q_heads=kernel.heads.q_heads * queries)
        many, one = (
            DecodeAttention(kernel.machine, heads).cost(sequences, context),
            kernel.cost(sequences, context),
        )
        return Cost(np.maximum(many.us, one.us), np.maximum(many.tags, one.tags))
    return kernel.cost(sequences * queries, context)
