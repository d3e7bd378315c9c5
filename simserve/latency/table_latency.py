"""Step latency from a plan of kernels: arrays by token count, decode pages, memoised prompt chunks.

A step takes, per pipeline stage: kernels by token count + head by sequence count + attention of the decoding
sequences + attention of each prompt chunk, then the engine's overhead. Chunks of one step are computed by
one kernel call: each of B chunks costs its share of a batch of B chunks like itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.core import Chunk
from simserve.latency.base import PAGE, PROVENANCE
from simserve.latency.blocks.plan import Plan
from simserve.latency.costs import LinearOp, by_provenance
from simserve.latency.grid import ANALYTIC, Float64
from simserve.latency.overhead import EngineOverhead

FIRST_TOKENS = 8192
"""Token counts priced at first; the arrays double when a step is larger."""


class _Counted:
    """Time by count (tokens or sequences), grown on demand: int64 ns, and its parts by provenance."""

    def __init__(self, ops: list[LinearOp], first: int) -> None:
        self._ops = ops
        self.ns: array[int] = array("q", [0])
        self.parts_us: Float64 = np.zeros((4, 1))
        self.grow(first)

    def grow(self, count: int) -> None:
        """Price counts up to at least `count`."""
        size = len(self.ns)
        while size <= count:
            size *= 2
        counts = np.arange(len(self.ns), size, dtype=np.float64)
        if len(counts):
            more = by_provenance([(op.cost(counts), op.times) for op in self._ops], len(counts))
            self.parts_us = np.concatenate([self.parts_us, more], axis=1)
            self.ns.frombytes(np.rint(more.sum(0) * 1000).astype(np.int64).tobytes())


class _Page:
    """Decode attention of n sequences at PAGE consecutive mean contexts."""

    __slots__ = ("attention_ns", "tags")

    def __init__(self, attention_ns: NDArray[np.int64], tags: NDArray[np.uint8]) -> None:
        self.attention_ns = array("q", attention_ns.tobytes())
        self.tags = tags.tobytes()


class TableLatency:
    """`StepLatency` of one (model, GPU, parallelism, dtypes, engine). Built by `compile_step_latency`."""

    def __init__(
        self, plan: Plan, stages: int, overhead: EngineOverhead, hop_us_per_token: float, hop_us: float
    ) -> None:
        """`plan` is that of the slowest stage; `hop_us + tokens * hop_us_per_token` hands over activations."""
        self.plan = plan
        self.stages = stages
        self.overhead = overhead
        self._hop = (hop_us, hop_us_per_token) if stages > 1 else (0.0, 0.0)
        self._tokens = _Counted(plan.per_token, FIRST_TOKENS)
        self._sequences = _Counted(plan.per_sequence, 512)
        self._pages: dict[tuple[int, int], _Page] = {}
        self._chunks: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._booked_ns = [0, 0, 0, 0]
        self._token_visits: dict[int, int] = {}
        self._sequence_visits: dict[int, int] = {}
        self.estimated: tuple[str, ...] = ()
        """What was costed without a measured table, in words."""
        self._largest_graph = overhead.capture_sizes[-1] if overhead.capture_sizes else 0

    # -- the contract -------------------------------------------------------------------------------------

    def decode_page(self, sequences: int, page: int) -> array[int]:
        """Return PAGE + 1 cumulative times of decode steps (see `StepLatency`)."""
        steps = self._decode_steps(sequences, page)
        cumulative = np.zeros(PAGE + 1, np.int64)
        np.cumsum(steps, out=cumulative[1:])
        return array("q", cumulative.tobytes())

    def step_ns(self, decodes: int, decode_context: int, chunks: Sequence[Chunk]) -> int:
        """Return the duration of a step with prompt chunks (see `StepLatency`)."""
        tokens = sequences = decodes
        attention_ns = 0
        booked = self._booked_ns
        batch = len(chunks)
        for _, new, cached, last in chunks:
            tokens += new
            sequences += last
            price = self._chunks.get((batch, new, cached)) or self._price_chunk(batch, new, cached)
            attention_ns += price[0]
            booked[price[1]] += price[0]
        if decodes:
            mean = decode_context // decodes
            page = self._pages.get((decodes, mean // PAGE)) or self._attention_page(decodes, mean // PAGE)
            place = mean % PAGE
            attention_ns += page.attention_ns[place]
            booked[page.tags[place]] += page.attention_ns[place]
        return self._with_overhead(tokens, sequences, batch, attention_ns)

    def hop_ns(self, tokens: int) -> int:
        """Return the time to hand the activations of `tokens` to the next pipeline stage."""
        return round((self._hop[0] + tokens * self._hop[1]) * 1000) if self.stages > 1 else 0

    def decode_provenance(self, sequences: int, page: int, visits: NDArray[np.int64]) -> dict[str, float]:
        """Return ns by provenance of the page's steps, each weighted with its visits (int64[PAGE])."""
        attention = self._pages.get((sequences, page)) or self._attention_page(sequences, page)
        attention_ns = np.frombuffer(attention.attention_ns, np.int64)
        total = np.bincount(
            np.frombuffer(attention.tags, np.uint8), weights=attention_ns * visits, minlength=4
        )
        steps = int(visits.sum())
        total = total + self._counted_parts(self.overhead.padded(sequences), sequences) * steps
        whole = float((self._decode_steps(sequences, page) * visits).sum())
        total[ANALYTIC] += whole - total.sum()
        return dict(zip(PROVENANCE, total.tolist(), strict=True))

    def step_provenance(self) -> dict[str, float]:
        """Return ns by provenance of all that `step_ns` was asked so far."""
        total = np.array(self._booked_ns, np.float64)
        for tokens, visits in self._token_visits.items():
            total += self._tokens.parts_us[:, tokens] * 1000 * visits
        for sequences, visits in self._sequence_visits.items():
            total += self._sequences.parts_us[:, sequences] * 1000 * visits
        return dict(zip(PROVENANCE, total.tolist(), strict=True))

    def forget(self) -> None:
        """Drop what was booked so far."""
        self._booked_ns = [0, 0, 0, 0]
        self._token_visits.clear()
        self._sequence_visits.clear()

    # -- how ----------------------------------------------------------------------------------------------

    def _with_overhead(self, tokens: int, sequences: int, chunks: int, attention_ns: int) -> int:
        """Add kernels by count and the engine's overhead, and book them."""
        run_tokens = self.overhead.padded(tokens) if tokens <= self._largest_graph else tokens
        if run_tokens >= len(self._tokens.ns):
            self._tokens.grow(run_tokens)
        if sequences >= len(self._sequences.ns):
            self._sequences.grow(sequences)
        kernels_ns = self._tokens.ns[run_tokens] + self._sequences.ns[sequences] + attention_ns
        visits = self._token_visits
        visits[run_tokens] = visits.get(run_tokens, 0) + 1
        visits = self._sequence_visits
        visits[sequences] = visits.get(sequences, 0) + 1
        total_ns = max(1, self._overheads(kernels_ns, sequences, chunks, tokens))
        self._booked_ns[ANALYTIC] += total_ns - kernels_ns
        return total_ns

    def _overheads(self, kernels_ns: int, sequences: int, chunks: int, tokens: int) -> int:
        overhead = self.overhead
        launch_us = 0.0
        if self._largest_graph and (chunks or tokens > self._largest_graph):
            launch_us = overhead.launch_layer_us * self.plan.layers
        busy_us = max(kernels_ns / 1000, launch_us)
        cpu_us = overhead.step_us + overhead.sequence_us * sequences + overhead.request_us * chunks
        longest_us = max(busy_us, cpu_us) if overhead.overlapped else busy_us + cpu_us
        return round((longest_us + overhead.gap_us) * 1000)

    def _decode_steps(self, sequences: int, page: int) -> NDArray[np.int64]:
        """Return the duration of each step of a page, int64[PAGE]; the same arithmetic as `_with_overhead`."""
        attention = self._pages.get((sequences, page)) or self._attention_page(sequences, page)
        run_tokens = self.overhead.padded(sequences)
        if run_tokens >= len(self._tokens.ns):
            self._tokens.grow(run_tokens)
        if sequences >= len(self._sequences.ns):
            self._sequences.grow(sequences)
        counted_ns = self._tokens.ns[run_tokens] + self._sequences.ns[sequences]
        kernels_ns = np.frombuffer(attention.attention_ns, np.int64) + counted_ns
        overhead = self.overhead
        launch_us = 0.0
        if self._largest_graph and sequences > self._largest_graph:
            launch_us = overhead.launch_layer_us * self.plan.layers
        busy_us = np.maximum(kernels_ns / 1000, launch_us)
        cpu_us = overhead.step_us + overhead.sequence_us * sequences + overhead.request_us * 0
        longest_us = np.maximum(busy_us, cpu_us) if overhead.overlapped else busy_us + cpu_us
        return np.maximum(1, np.rint((longest_us + overhead.gap_us) * 1000).astype(np.int64))

    def _counted_parts(self, run_tokens: int, sequences: int) -> Float64:
        return (self._tokens.parts_us[:, run_tokens] + self._sequences.parts_us[:, sequences]) * 1000

    def _attention_page(self, sequences: int, page: int) -> _Page:
        context = np.maximum(1, np.arange(page * PAGE, (page + 1) * PAGE, dtype=np.float64))
        total_us, tags = np.zeros(PAGE), np.zeros(PAGE, np.uint8)
        for layers in self.plan.attention:
            cost = layers.decode.cost(sequences, context)
            total_us += cost.us * layers.times
            np.maximum(tags, cost.tags, out=tags)
        made = _Page(np.rint(total_us * 1000).astype(np.int64), tags)
        self._pages[(sequences, page)] = made
        return made

    def _price_chunk(self, batch: int, new: int, cached: int) -> tuple[int, int]:
        total_us, worst = 0.0, 0
        for layers in self.plan.attention:
            us, tag = layers.prefill.chunk_us(batch, new, cached)
            total_us += us * layers.times
            worst = max(worst, tag)
        price = (round(total_us * 1000), worst)
        self._chunks[(batch, new, cached)] = price
        return price
