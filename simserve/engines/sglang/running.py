"""The running batch of the SGLang scheduler, with every sum that a decode step needs kept as it changes.

A decode step adds one token to every sequence, so lengths are kept as of the moment of joining and two
counters: decode steps launched (they use KV) and decode steps booked (their tokens are known). Without
overlap both are equal at every decision; with it the last step is launched but not booked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush

from simserve.engines.sglang.options import (
    CLIP_MAX_NEW_TOKENS,
    DECAY_STEPS,
    INIT_RATIO,
    MIN_RATIO_FACTOR,
    RETRACT_DECODE_STEPS,
)
from simserve.engines.sglang.sequence import Sequence

# SGLang's new-token ratio: the share of the allowed output that an admission expects of running requests.


class NewTokenRatio:
    """Starts high, decays with every decode step, and is set anew by a retraction."""

    def __init__(self, conservativeness: float) -> None:
        self.initial = min(1.0, INIT_RATIO * conservativeness)
        self._floor = self.initial * MIN_RATIO_FACTOR
        self._decay = (self.initial - self._floor) / DECAY_STEPS
        self.value = self.initial
        """The ratio now."""

    def decay(self, steps: int) -> None:
        """Book decode steps that had enough memory (one subtraction each: the sum rounds as the engine's)."""
        for _ in range(steps):
            if self.value == self._floor:
                return
            self.value = max(self.value - self._decay, self._floor)

    def reset_after_retraction(self, outputs: int, max_new_tokens: int, remaining: int) -> None:
        """Set the ratio from the totals over the `remaining` requests that keep running."""
        estimate = (outputs + RETRACT_DECODE_STEPS * remaining) / (max_new_tokens + 1)
        self.value = min(1.0, estimate)

    def reset(self) -> None:
        """Start over, as the engine does whenever it is idle."""
        self.value = self.initial


class Running:
    """Sequences that decode, in batch order."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._sequences: dict[int, Sequence] = {}
        self._done: list[Sequence] = []
        self.launched = 0
        """Decode steps started so far."""
        self._booked = 0
        self._first_slot = 0
        self._last_slot = 0
        self._decaying = 0
        self._decays_later: dict[int, int] = {}
        self._starts: list[int] = []
        self._residues: Counter[int] = Counter()
        self._limits: dict[int, list[Sequence]] = defaultdict(list)
        self.reserved = 0
        """Output tokens that all sequences may still make, each cut to 4,096."""
        self.kv_tokens = 0
        """Tokens with KV of the sequences that are not done."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(sorted(self._sequences.values(), key=lambda s: s.slot))

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.request.id in self._sequences

    def get(self, request_id: int) -> Sequence | None:
        """Return the sequence of a request, if it is in the batch."""
        return self._sequences.get(request_id)

    def stored(self, sequence: Sequence) -> int:
        """Return the tokens of `sequence` with KV, those of a launched step included."""
        return sequence.kv.stored + self.launched - sequence.joined

    def outputs(self, sequence: Sequence) -> int:
        """Return the output tokens of `sequence` that are known."""
        return sequence.outputs + max(0, self._booked - sequence.marked)

    def join(self, sequences: list[Sequence], ahead: bool = False) -> None:
        """Add sequences whose prompt is computed, at the end of the batch or `ahead` of the others."""
        slot = self._first_slot - len(sequences) if ahead else self._last_slot + 1
        self._first_slot = min(self._first_slot, slot)
        self._last_slot = max(self._last_slot, slot + len(sequences) - 1)
        for offset, sequence in enumerate(sequences):
            sequence.slot = slot + offset
            self._join(sequence)

    def _join(self, sequence: Sequence) -> None:
        sequence.joined = sequence.marked = self.launched
        self._sequences[sequence.request.id] = sequence
        self.kv_tokens += sequence.kv.stored
        self._residues[(sequence.kv.stored - sequence.joined) % self._page_size] += 1
        self._reserve(sequence)

    @property
    def live(self) -> int:
        """Sequences that are not done."""
        return len(self._sequences) - len(self._done)

    def launch(self, steps: int = 1) -> None:
        """Let every sequence grow by `steps` tokens of KV."""
        self.launched += steps
        self.kv_tokens += steps * self.live

    def book(self, steps: int) -> None:
        """Let every sequence have `steps` known output tokens more."""
        end = self._booked + steps
        while self._starts and self._starts[0] <= end:
            start = heappop(self._starts)
            self._pass_to(start)
            self._decaying += self._decays_later.pop(start)
        self._pass_to(end)

    def _pass_to(self, booked: int) -> None:
        self.reserved -= (booked - self._booked) * self._decaying
        self._booked = booked

    def limit(self, sequence: Sequence, steps: int) -> None:
        """Note that `sequence` reaches its allowed output `steps` decode steps from now."""
        sequence.limit_at = self.launched + steps
        self._limits[sequence.limit_at].append(sequence)

    def take_limited(self) -> list[Sequence]:
        """Remove and return the sequences whose last allowed token has been launched, in batch order."""
        now = self.launched
        if now not in self._limits:
            return []
        reached = [s for s in self._limits.pop(now) if s.limit_at == now and s in self and not s.done]
        for sequence in reached:
            self.remove(sequence)
        return sorted(reached, key=lambda s: s.slot)

    def first_output(self, sequence: Sequence) -> None:
        """Book the output token of the prefill step of a sequence that has joined already."""
        self._unreserve(sequence)
        sequence.outputs += 1
        self._reserve(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Settle the lengths of a finished sequence; it keeps its place until `drop_done`."""
        left = self._left(sequence)
        self._unreserve(sequence)
        self._settle(sequence)
        self.reserved += left
        sequence.done = True
        self._done.append(sequence)

    def drop_done(self) -> int:
        """Take finished sequences out of the batch; return how many."""
        dropped = len(self._done)
        for sequence in self._done:
            self.reserved -= min(sequence.outputs_left, CLIP_MAX_NEW_TOKENS)
            del self._sequences[sequence.request.id]
        self._done.clear()
        return dropped

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence that is not done out of the batch, with its lengths settled."""
        self._unreserve(sequence)
        self._settle(sequence)
        del self._sequences[sequence.request.id]

    def reorder(self, sequences: list[Sequence]) -> None:
        """Put the batch, which `sequences` are, in the order given."""
        for slot, sequence in enumerate(sequences, self._last_slot + 1):
            sequence.slot = self._last_slot = slot

    def decode_need(self, steps: int = 1) -> int:
        """Return the tokens of new pages that the next `steps` decode steps take."""
        rounds, rest = divmod(steps, self._page_size)
        pages = rounds * self.live
        for ahead in range(rest):
            pages += self._residues[-(self.launched + ahead) % self._page_size]
        return pages * self._page_size

    def steps_within(self, tokens: int) -> int:
        """Return the most decode steps whose new pages take at most `tokens` tokens."""
        rounds, rest = divmod(tokens // self._page_size, self.live)
        steps = rounds * self._page_size
        for ahead in range(self._page_size):
            rest -= self._residues[-(self.launched + ahead) % self._page_size]
            if rest < 0:
                break
            steps += 1
        return steps

    def _settle(self, sequence: Sequence) -> None:
        self._residues[(sequence.kv.stored - sequence.joined) % self._page_size] -= 1
        sequence.outputs = self.outputs(sequence)
        sequence.kv.stored = self.stored(sequence)
        self.kv_tokens -= sequence.kv.stored
        sequence.joined = sequence.marked = self.launched

    def _left(self, sequence: Sequence) -> int:
        return min(sequence.most_outputs - self.outputs(sequence), CLIP_MAX_NEW_TOKENS)

    def _decays_from(self, sequence: Sequence) -> int:
        """Return the booked step after which each output lowers the reservation of `sequence`."""
        return sequence.marked + max(0, sequence.outputs_left - CLIP_MAX_NEW_TOKENS)

    def _reserve(self, sequence: Sequence) -> None:
        self.reserved += self._left(sequence)
        start = self._decays_from(sequence)
        if start <= self._booked:
            self._decaying += 1
        elif start in self._decays_later:
            self._decays_later[start] += 1
        else:
            self._decays_later[start] = 1
            heappush(self._starts, start)

    def _unreserve(self, sequence: Sequence) -> None:
        self.reserved -= self._left(sequence)
        start = self._decays_from(sequence)
        if start > self._booked:
            self._decays_later[start] -= 1
        else:
            self._decaying -= 1
