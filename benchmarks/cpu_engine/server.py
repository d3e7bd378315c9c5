"""Serve a list of requests as they arrive, and keep what every step held and took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from benchmarks.cpu_engine.clock import Clock, WallClock
from benchmarks.cpu_engine.model import Chunk, Inputs, Model
from benchmarks.cpu_engine.scheduler import Scheduler, Sequence, Work


class Step(NamedTuple):
    """One step as it was run."""

    decodes: int
    decode_context: int
    """Sum of contexts, the new tokens included."""
    chunks: list[tuple[int, int, bool]]
    """(new tokens, cached tokens, whether the prompt ended)."""
    model_s: float
    whole_s: float
    """Scheduling, inputs and booking included."""


@dataclass
class Server:
    """One engine loop: the thread that computes is the one that schedules."""

    model: Model
    scheduler: Scheduler
    steps: list[Step] = field(default_factory=list)
    compute: Callable[[Inputs], list[int]] | None = None
    """Replaces the model (to time the loop alone)."""
    clock: Clock = field(default_factory=WallClock)

    @torch.inference_mode()
    def serve(self, requests: list[Sequence]) -> list[Sequence]:
        """Serve requests at their arrival times; return them when all are done."""
        coming = sorted(requests, key=lambda request: request.arrival_s)[::-1]
        finished: list[Sequence] = []
        begin = self.clock.now()
        while len(finished) < len(requests):
            now = self.clock.now() - begin
            while coming and coming[-1].arrival_s <= now:
                self.scheduler.waiting.append(coming.pop())
            if not self.scheduler.waiting and not self.scheduler.running:
                self.clock.wait(coming[-1].arrival_s - (self.clock.now() - begin))
                continue
            finished += self._step(begin)
        return finished

    def _step(self, begin: float) -> list[Sequence]:
        started = self.clock.now()
        work = self.scheduler.next_work()
        inputs = self._inputs(work)
        context = sum(sequence.known for sequence in work.decodes)
        chunks = [(n, s.computed, s.computed + n == len(s.prompt)) for s, n in work.chunks]
        before = self.clock.now()
        sampled = (self.compute or self.model)(inputs)
        after = self.clock.now()
        done = self.scheduler.book(work, sampled, after - begin)
        self.steps.append(
            Step(len(work.decodes), context, chunks, after - before, self.clock.now() - started)
        )
        return done

    def _inputs(self, work: Work) -> Inputs:
        size = self.scheduler.block_size
        tokens: list[int] = []
        places: list[int] = []
        slots: list[int] = []
        sampled: list[int] = []

        def add(sequence: Sequence, count: int) -> None:
            first = sequence.computed
            text = sequence.prompt if not sequence.made else [*sequence.made[-1:]]
            offset = first if not sequence.made else 0
            tokens.extend(text[offset : offset + count])
            places.extend(range(first, first + count))
            slots.extend(sequence.blocks[p // size] * size + p % size for p in range(first, first + count))

        for sequence in work.decodes:
            sampled.append(len(tokens))
            add(sequence, 1)
        chunks = []
        for sequence, count in work.chunks:
            start = len(tokens)
            add(sequence, count)
            chunks.append(Chunk(start, len(tokens), sequence.computed, torch.tensor([sequence.blocks])))
            if sequence.computed + count == len(sequence.prompt):
                sampled.append(len(tokens) - 1)
        widest = max((len(sequence.blocks) for sequence in work.decodes), default=0)
        table = [s.blocks + s.blocks[:1] * (widest - len(s.blocks)) for s in work.decodes]
        position = torch.tensor(places)
        return Inputs(
            torch.tensor(tokens), torch.tensor(slots), self.model.cos[position], self.model.sin[position],
            len(work.decodes), torch.tensor(table), torch.tensor([s.known for s in work.decodes]), chunks,
            torch.tensor(sampled, dtype=torch.int64),
        )  # fmt: skip
