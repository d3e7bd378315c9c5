"""Which tokens of which request the next step computes, and in which blocks they lie."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Sequence:
    """A request on its way."""

    number: int
    arrival_s: float
    prompt: list[int]
    output_tokens: int
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    made: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def known(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.prompt) + len(self.made)


@dataclass
class Work:
    """One step: sequences with the number of their tokens to compute."""

    decodes: list[Sequence]
    chunks: list[tuple[Sequence, int]]


class Scheduler:
    """Continuous batching with a token budget; the cache is large enough that nobody is preempted."""

    def __init__(self, blocks: int, block_size: int, max_sequences: int, budget: int) -> None:
        self.free = list(range(blocks))
        self.block_size, self.max_sequences, self.budget = block_size, max_sequences, budget
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def next_work(self) -> Work:
        """Running requests in order, then waiting ones while slots and budget last."""
        left = self.budget
        work = Work([], [])
        for sequence in self.running:
            left -= self._take(work, sequence, left)
        while self.waiting and left > 0 and len(self.running) < self.max_sequences:
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            left -= self._take(work, sequence, left)
        return work

    def _take(self, work: Work, sequence: Sequence, left: int) -> int:
        tokens = min(sequence.known - sequence.computed, left)
        if tokens <= 0:
            return 0
        while len(sequence.blocks) * self.block_size < sequence.computed + tokens:
            sequence.blocks.append(self.free.pop())
        if sequence.made:
            work.decodes.append(sequence)
        else:
            work.chunks.append((sequence, tokens))
        return tokens

    def book(self, work: Work, sampled: list[int], now_s: float) -> list[Sequence]:
        """Count what was computed, hand out tokens (decodes first); return the sequences that are done."""
        tokens = iter(sampled)
        for sequence in work.decodes:
            sequence.computed += 1
            self._token(sequence, next(tokens), now_s)
        for sequence, count in work.chunks:
            sequence.computed += count
            if sequence.computed == len(sequence.prompt):
                self._token(sequence, next(tokens), now_s)
        done = [sequence for sequence in self.running if len(sequence.made) == sequence.output_tokens]
        for sequence in done:
            self.running.remove(sequence)
            self.free += sequence.blocks
        return done

    def _token(self, sequence: Sequence, token: int, now_s: float) -> None:
        sequence.made.append(token)
        sequence.last_s = now_s
        if len(sequence.made) == 1:
            sequence.first_s = now_s
