"""vLLM's scheduler in a prefill/decode split with a KV connector that reads asynchronously (NIXL, Mooncake).

The prefill side is asked for one token; when it has ended, its blocks stay held until they were read or the
lease is over. On the decode side a request takes blocks for its whole prompt, waits aside for the KV (others
are admitted meanwhile) and is then admitted before the queue; its last prompt token is computed again there,
and gives the first token that the client sees. Read in vLLM's V1 scheduler and NIXL connector (0.33.0: lease
renewed by the reader while the request waits there). If the KV is lost, the decode replica recomputes its
prompt.
"""

from __future__ import annotations

from collections import deque

from simserve.core import Batch, Chunk, Request, Wait, WaitReason
from simserve.core.request import DecodeRequest, KvMoved, PrefillRequest
from simserve.engines.base import Mover, SplitEngine
from simserve.engines.vllm.scheduler import VllmPolicy
from simserve.engines.vllm.waiting import WaitingQueue
from simserve.kvcache import PrefixCache, blocks_for


class LoadedFirst:
    """The waiting queue behind those whose KV has come: they hold their blocks, so nothing keeps them out."""

    def __init__(self, queue: WaitingQueue) -> None:
        """`queue` keeps its own order."""
        self.loaded: deque[Request] = deque()
        self._queue = queue
        self.add, self.put_back = queue.add, queue.put_back

    def __len__(self) -> int:
        return len(self.loaded) + len(self._queue)

    def __bool__(self) -> bool:
        return bool(self.loaded or self._queue)  # asked several times per step

    def head(self) -> Request:
        """Return who is next, without removing it."""
        return self.loaded[0] if self.loaded else self._queue.head()

    def pop(self) -> Request:
        """Remove and return who is next."""
        return self.loaded.popleft() if self.loaded else self._queue.pop()

    def remove(self, request: Request, /) -> None:
        """Remove a request of the queue itself."""
        self._queue.remove(request)


class VllmSplitPolicy(VllmPolicy):
    """Either side of a split: whole requests and both halves, as they come."""

    mover: Mover
    """Set by whoever owns the replica."""

    def __init__(self, *args, **kwargs) -> None:
        """As for `VllmPolicy`."""
        self._coming: dict[int, int] = {}
        """Requests whose KV is on its way, with the blocks that were cached here."""
        self._kept: dict[int, Request] = {}
        """Ended prompts whose blocks stay."""
        self._local: set[int] = set()
        """Decoding halves that compute their prompt here if they must be computed (again)."""
        self._unheard: set[int] = set()
        """Prompts that were read before their end was processed here."""
        self._aside = False
        """The last decision left nobody waiting but those whose KV is on its way."""
        super().__init__(*args, **kwargs)
        self.queue = self._line = LoadedFirst(self.queue)

    @property
    def waiting(self) -> int:
        """Requests in the queue, or waiting aside for their KV."""
        return super().waiting + len(self._coming)

    @property
    def kept_out(self) -> WaitReason:
        """What the last decision left the head of the queue waiting for."""
        return WaitReason.TRANSFER if self._aside else super().kept_out

    def add(self, request: Request | KvMoved) -> None:
        """Queue a request, or hear what became of KV."""
        if not isinstance(request, KvMoved):
            self.queue.add(request)
        elif isinstance(request.request, PrefillRequest):
            self._was_read(request.request)
        else:
            self._came(request)

    def _holders(self) -> list[int]:
        """Return the ids of all that hold blocks, those that wait for KV or to be read too."""
        loaded = [request.id for request in self._line.loaded]
        return [*super()._holders(), *self._coming, *self._kept, *loaded]

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        """Decide one step; KV that comes may change the decision unless every slot is taken."""
        batch = super().next_batch(now_ns, lane)
        self._aside = not self._left_waiting and bool(self._coming)
        if self._left_waiting and self._kept and self._reason is WaitReason.BLOCKS:
            first = next(iter(self._kept.values()))  # computed prompts hold blocks until they were read
            self._reason = WaitReason.TRANSFER if self.mover.has_room(first) else WaitReason.DECODE
        if isinstance(batch, Batch) and (self._coming or self._kept):
            batch.sealed = batch.sealed and len(self.run_list) >= self._max_seqs
        return batch

    # -- the prefill side ------------------------------------------------------------------------------

    def _release(self, request: Request) -> None:
        """Free what an ended request holds; a prompt's blocks only when they were read."""
        if not isinstance(request, PrefillRequest):
            super()._release(request)
            self._local.discard(request.id)
        elif self.run_list.pop(request.id, None) is None:
            self.queue.remove(request)  # preempted in the step before its end was known
            if request.id in self._unheard:
                self._unheard.remove(request.id)
            else:
                self.mover.lost(request)
        else:
            self._leave(request)
            self._kept[request.id] = request
            if request.id in self._unheard:
                self._unheard.remove(request.id)
                self._was_read(request)

    def _leave(self, request: Request) -> None:
        """Take a request off its group or the partial prompts; it keeps its blocks."""
        if request.decoding:
            self.groups[self.lane_of.pop(request.id, 0)].leave(request)
        else:
            self.partial.pop(request.id, None)

    def _was_read(self, request: Request) -> None:
        """Give back the blocks of a prompt that was read."""
        if self._kept.pop(request.id, None) is None:
            self._unheard.add(request.id)
        else:
            self.pool.release(request, request.computed)

    # -- the decode side -------------------------------------------------------------------------------

    def _apart(self, request: Request) -> bool:
        """Return True if the next request's KV has come, or must come first."""
        return bool(self._line.loaded) or (
            isinstance(request, DecodeRequest) and request.id not in self._local
        )

    def _next_waiting(self) -> Request | None:
        """Return the request to admit next as if there were no split: nobody if that one is set apart."""
        request = super()._next_waiting()
        return None if request is not None and self._apart(request) else request

    def _admit(self, budget: int, chunks: list[Chunk], now_ns: int) -> list[Request]:
        """Admit from the head of the queue; who lacks KV takes its blocks and is set aside."""
        admitted: list[Request] = []
        while True:
            before = len(chunks)
            admitted += super()._admit(budget, chunks, now_ns)
            budget -= sum(chunk.tokens for chunk in chunks[before:])
            if budget <= 0 or not self.queue or len(self.run_list) >= self._max_seqs:
                return admitted
            request = self.queue.head()
            if not self._apart(request):
                return admitted
            if self._line.loaded:
                if not self._admit_loaded(request, chunks):
                    self._reason = WaitReason.BLOCKS
                    return admitted
                admitted.append(request)
                budget -= 1
            elif not self._take_room(request):
                self._reason = WaitReason.BLOCKS
                return admitted

    def _admit_loaded(self, request: Request, chunks: list[Chunk]) -> bool:
        """Admit the head, whose blocks are all here: its last prompt token is computed again. Return True."""
        self.queue.pop()
        self.run_list[request.id] = request
        chunks.append(self.schedule_chunk(request, 1))
        return True

    def _take_room(self, request: Request) -> bool:
        """Hold blocks for a whole prompt whose KV is to come; False if there is no room.

        What prompts in progress still need is left to them.
        """
        pool, size = self.pool, self._block_size
        hits, idle_hits = pool.hit(request)
        promised = sum(
            blocks_for(one.known, size) - blocks_for(one.computed, size) for one in self.partial.values()
        )
        need = pool.admission_need(request.known, request.known, hits, idle_hits)
        if need > self._room(request) - promised:
            return False
        self.queue.pop()
        if isinstance(pool, PrefixCache):
            pool.hold(request, hits, blocks_for(request.known, size) - hits)
        else:
            pool.admit(request, hits, request.known - hits * size)
        self._coming[request.id] = hits
        request.cached = hits * size
        self.mover.room_for(request, hits * size)
        return True

    def _came(self, news: KvMoved) -> None:
        """The KV of a prompt has come, or never will."""
        request, pool = news.request, self.pool
        hits = self._coming.pop(request.id)
        if news.dropped:
            self._give_back_room(request, hits)
            self.mover.struck_off(request)
            return
        self._local.add(request.id)
        if not news.ok:
            self._give_back_room(request, hits)
            self.queue.put_back(request)
            return
        if isinstance(pool, PrefixCache):
            pool.fill(request, request.known // self._block_size)
        request.computed = request.known - 1
        self._line.loaded.append(request)

    def _give_back_room(self, request: Request, hits: int) -> None:
        pool, size = self.pool, self._block_size
        if isinstance(pool, PrefixCache):
            pool.release(request, hits * size)
            pool.give(blocks_for(request.known, size) - hits)
        else:
            pool.release(request, request.known)


DISAGG = SplitEngine(
    prefill=VllmSplitPolicy,
    decode=VllmSplitPolicy,
    overlap="request",
    room_first=False,
    computes_prompts=True,
    first_token="decode",
    handshake_ms=0.4,
    lease_s=None,
    source="vLLM V1 with the NIXL connector (pull)",
)
