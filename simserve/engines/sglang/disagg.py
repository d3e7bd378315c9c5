"""SGLang's schedulers in a prefill/decode split (read in its disaggregation package, 2026).

The decode side allocates room for a prompt before the prefill side may compute it, keeping tokens in reserve
for the answers of all requests that it has taken on; whoever has room waits for the KV and then joins the
running batch without a step of its own. The prefill side computes prompts with one output token, whose value
travels with the KV: the client sees it when the decode side takes the request up. A computed prompt stays
locked until it was sent. A request that the decode side sends back keeps its KV in host memory and comes back
without being computed again (the copies take no time here).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from simserve.core import Batch, Request, Wait, WaitReason
from simserve.core.request import KvMoved, PrefillRequest
from simserve.engines.base import Mover, SplitEngine
from simserve.engines.sglang.decode import Results
from simserve.engines.sglang.options import CLIP_MAX_NEW_TOKENS, SglangParams
from simserve.engines.sglang.scheduler import SglangPolicy
from simserve.engines.sglang.sequence import Sequence
from simserve.engines.sglang.state import State, Step

FEW_REQUESTS = 32
"""With at most so many running requests, twice as many more may have room already."""


class _Keeper(Results):
    """Results of a prefill replica: an ended prompt keeps its KV until it was sent."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._kept: dict[int, Sequence] = {}
        self._sent: set[int] = set()
        """Prompts that were sent before their end was processed."""

    def _finish(self, sequence: Sequence) -> None:
        request = sequence.request
        if not isinstance(request, PrefillRequest):
            super()._finish(sequence)
            return
        if sequence in self._state.batch:
            self._state.batch.finish(sequence)
        self._state.parting.pop(request.id, None)
        sequence.done = True
        self.cache(sequence, sequence.kv.stored)
        self._kept[request.id] = sequence
        if request.id in self._sent:
            self._sent.remove(request.id)
            self.sent(request)

    @property
    def unread(self) -> bool:
        """Whether computed prompts hold KV that was not sent yet."""
        return bool(self._kept)

    def sent(self, request: Request) -> None:
        """Let go of a prompt that was sent; its KV stays in the prefix cache."""
        sequence = self._kept.pop(request.id, None)
        if sequence is None:
            self._sent.add(request.id)
            return
        self._state.pool.cache_finished(
            sequence.kv, sequence.runs(), sequence.kv.stored, request.prompt_tokens, request.priority
        )


class SglangPrefillPolicy(SglangPolicy):
    """A prefill replica."""

    mover: Mover
    """Set by whoever owns the replica."""

    def __init__(self, *args, **kwargs) -> None:
        """As for `SglangPolicy`."""
        super().__init__(*args, **kwargs)
        self._results = self._keeper = _Keeper(self.state)

    def add(self, request: Request | KvMoved) -> None:
        """Queue a request, or hear that a prompt was sent."""
        if isinstance(request, KvMoved):
            self._keeper.sent(request.request)
        else:
            super().add(request)

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        """Decide one step; who lacks room while prompts wait to be sent waits for the transfer."""
        batch = super().next_batch(now_ns, lane)
        if self.state.kept_out is WaitReason.BLOCKS and self._keeper.unread:
            self.state.kept_out = WaitReason.TRANSFER
        return batch


class SglangDecodePolicy(SglangPolicy):
    """A decode replica."""

    mover: Mover
    """Set by whoever owns the replica."""

    def __init__(
        self,
        params: SglangParams,
        *args,
        reserved_decode_tokens: int = 512,
        decode_cache: bool = False,
        **kwargs,
    ) -> None:
        """As for `SglangPolicy`; the prefix cache is off unless `decode_cache`."""
        off = params.disable_radix_cache or not decode_cache
        super().__init__(params.model_copy(update={"disable_radix_cache": off}), *args, **kwargs)
        self._reserved = reserved_decode_tokens
        self._unplaced: deque[Sequence] = deque()
        """Requests without room."""
        self._coming: dict[int, Sequence] = {}
        """Requests with room, whose KV is on its way."""
        self._ready: list[Sequence] = []
        """Requests whose KV is here."""
        self._joining: list[Sequence] = []
        """Those that the decision just made takes up."""
        self._took_up = False
        limit = params.max_running_requests
        self._most_placed = limit * 3 if limit <= FEW_REQUESTS else limit

    @property
    def waiting(self) -> int:
        """Requests without room, waiting for KV or for a place in the batch, or sent back."""
        return len(self.state.queue) + len(self._unplaced) + len(self._coming) + len(self._ready)

    def add(self, request: Request | KvMoved) -> None:
        """Queue a request, or hear what became of its KV."""
        if not isinstance(request, KvMoved):
            super().add(request)
            self._unplaced.append(self.state.queue.pop())
            return
        sequence = self._coming.pop(request.request.id)
        if request.ok:
            self._ready.append(sequence)
        else:
            self.state.pool.drop(sequence.kv)
            self.mover.struck_off(request.request)

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        """Take requests up, without a step; else decode."""
        batch = self._next()
        self.state.kept_out = self._reason()
        return batch

    def _next(self) -> Batch | Wait:
        took_up, self._took_up = self._took_up, False
        self._tidy()
        batch = None if took_up else self._take_up()
        batch = batch or self._decode.attempt(self.last)
        if batch is None and (self._results.settle() or self.state.sent_back):
            self._tidy()
            batch = self._decode.attempt(self.last)
        batch = batch or self._take_up()  # who just left has made room
        if batch is None:
            return Wait()
        if (took_up and (self._unplaced or self._ready)) or (self._unplaced and not self._shut_out()):
            batch.repeats = 1  # the next decision looks at them (again)
        batch.sealed = False
        return batch

    def update(self, batch: Batch, steps: int, finished: Iterable[Request], lane: int = 0) -> None:
        """Let those taken up join the batch, or book the decode step decided last."""
        if not self._joining:
            super().update(batch, steps, finished, lane)
            return
        done = {request.id for request in finished}
        joining, self._joining = self._joining, []
        running = self.state.batch
        for sequence in joining:
            sequence.outputs = max(sequence.outputs, 1)
            sequence.waiting = False
            if sequence.request.id in done:
                sequence.done = True
                self._let_go(sequence)
        joining = [sequence for sequence in joining if not sequence.done]
        running.join(joining)
        for sequence in joining:
            if self._overlap:
                running.limit(sequence, max(0, sequence.request.max_tokens - sequence.outputs))
            self._results.cache(sequence, sequence.kv.stored)

    # -- parts -----------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Let those go whose end is known."""
        last, self.last = self.last, Step()
        self._join(last)

    def _take_up(self) -> Batch | None:
        """Make room for whoever fits, and take up whose KV is here, as far as the batch has places."""
        self._bring_back()
        if not self.state.queue:
            self._place()
        free = self.params.max_running_requests - len(self.state.batch)
        self._joining, self._ready = self._ready[:free], self._ready[free:]
        if not self._joining:
            return None
        self._took_up = True
        return Batch(0, 0, [], [sequence.request for sequence in self._joining], self.state.told(), [])

    def _bring_back(self) -> None:
        """Let requests that were sent back have their KV again, in order, as far as it fits."""
        queue = self.state.queue
        while queue and queue[0].known + self._reserved <= self._room():
            sequence = queue.pop(0)
            self._hold(sequence, sequence.known - 1)
            self._ready.append(sequence)

    def _place(self) -> None:
        """Make room for prompts in order, until one does not fit."""
        if self.params.enable_priority_scheduling and len(self._unplaced) > 1:
            sign = 1 if self.params.schedule_low_priority_values_first else -1
            self._unplaced = deque(sorted(self._unplaced, key=lambda s: sign * s.request.priority))
        pool = self.state.pool
        while self._unplaced and not self._shut_out():
            sequence = self._unplaced[0]
            prompt = sequence.request.prompt_tokens
            node, cached = pool.lookup(sequence.runs(), prompt - 1)
            pool.hold(sequence.kv, node, cached)
            answer = min(sequence.most_outputs, CLIP_MAX_NEW_TOKENS)
            needed = max(self._wanted(sequence, cached), prompt - cached + answer - self._retractable())
            if needed > self._room():
                pool.drop(sequence.kv)
                return
            self._unplaced.popleft()
            self._hold(sequence, prompt)
            sequence.request.cached = cached
            self._coming[sequence.request.id] = sequence
            self.mover.room_for(sequence.request, cached)

    def _wanted(self, sequence: Sequence, cached: int) -> int:
        """Return the tokens that a request takes or keeps in reserve."""
        pool = self.state.pool
        return pool.paged(sequence.request.prompt_tokens) - pool.paged(cached) + self._reserved

    def _hold(self, sequence: Sequence, tokens: int) -> None:
        """Take the pages for the first `tokens` tokens of a request."""
        self.state.take(self.state.pool.need(sequence.kv, tokens))
        sequence.kv.stored = tokens

    def _let_go(self, sequence: Sequence) -> None:
        """A request ended with the token that came with its KV."""
        kv, request = sequence.kv, sequence.request
        self.state.pool.cache_finished(
            kv, sequence.runs(), kv.stored, request.prompt_tokens, request.priority
        )

    def _reason(self) -> WaitReason:
        """Return what the first without room waits for; then those with room, and with their KV."""
        if self.state.queue:
            return WaitReason.BLOCKS
        if self._unplaced:
            return WaitReason.SLOTS if self._active() >= self._most_placed else WaitReason.BLOCKS
        if self._ready:
            return WaitReason.SLOTS
        return WaitReason.TRANSFER if self._coming else WaitReason.STEP

    def _active(self) -> int:
        """Return the requests that have room."""
        state = self.state
        return state.batch.live + len(state.parting) + len(self._coming) + len(self._ready)

    def _retractable(self) -> int:
        """Return the tokens that sending everybody back would surely free: not those in the prefix cache."""
        running = self.state.batch
        if not self.state.pool.cache:
            return running.kv_tokens
        return sum(running.stored(s) - s.kv.shared for s in running if not s.done)

    def _room(self) -> int:
        """Return the tokens that may be given away: free ones, less what is kept for those that have room.

        Kept is the reserve of all of them, or what the longest answer may still need if all that run went.
        (The engine reckons only with answers in the running batch, and fails if the reserve is too small.)
        """
        pool = self.state.pool
        return pool.room - max(self._reserved * self._active(), self._longest_need())

    def _longest_need(self) -> int:
        ends = [_longest(sequence) for sequence in self.state.batch]
        ends += [_longest(one) - one.kv.stored for one in (*self._coming.values(), *self._ready)]
        return max(ends, default=0) - self._retractable()

    def _shut_out(self) -> bool:
        """Return True if the first request without room finds none for sure while the batch only decodes."""
        if self._active() >= self._most_placed:
            return True
        if self.state.pool.cache:
            return False
        wanted = self._wanted(self._unplaced[0], 0)
        return wanted > self.state.pool.room - self._reserved * self._active()


def _longest(sequence: Sequence) -> int:
    """Return the most tokens that a request may come to, its answer cut to what the engine reckons with."""
    return sequence.request.prompt_tokens + min(sequence.most_outputs, CLIP_MAX_NEW_TOKENS)


DISAGG = SplitEngine(
    prefill=SglangPrefillPolicy,
    decode=SglangDecodePolicy,
    overlap="chunk",
    room_first=True,
    computes_prompts=False,
    first_token="prefill",
    handshake_ms=2.0,
    lease_s=None,
    source="SGLang's disaggregation mode (room on the decode side first, KV sent after each chunk)",
    decode_options=("reserved_decode_tokens", "decode_cache"),
)
