"""Orca (Yu et al., OSDI 2022): iteration-level first-come-first-served batching.

Every iteration runs all admitted requests: whole prompts of the new ones beside one token of the others.
A request is admitted when a slot is free and the KV of its prompt and its declared `max_tokens` can be set
aside, so nothing is ever preempted and no memory is shared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pydantic import Field

from simserve.core import Batch, Chunk, Request, Wait, WaitReason
from simserve.engines.base import POLICIES, PolicyParams, Scheduler
from simserve.engines.decode_batch import FOREVER, DecodeGroup
from simserve.engines.engine import Engine, EnginePreset, no_defaults
from simserve.kvcache import BlockPool, blocks_for


class OrcaParams(PolicyParams):
    """Settings of the Orca policy."""

    max_num_seqs: int = Field(
        default=256, ge=1, description="Most requests that run at once (Orca's max batch size)."
    )

    @property
    def most_sequences(self) -> int:
        """Orca's max batch size."""
        return self.max_num_seqs


@POLICIES.register("orca")
class OrcaPolicy(Scheduler):
    """Iteration-level FCFS with KV set aside for each request's maximum length."""

    Params = OrcaParams
    can_drop = True

    def __init__(
        self, params: OrcaParams, *, kv_blocks: int, block_size: int, max_model_len: int, lanes: int = 1
    ) -> None:
        """`kv_blocks` usable blocks of `block_size` tokens; `lanes` pipeline microbatches."""
        self._max_num_seqs = params.max_num_seqs
        self._max_model_len = max_model_len
        self._pool = BlockPool(kv_blocks, block_size)
        self._waiting: deque[Request] = deque()
        self._groups = [DecodeGroup(block_size) for _ in range(lanes)]
        self.running = 0
        self.kept_out = WaitReason.STEP

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def kv_used_blocks(self) -> int:
        """Blocks set aside."""
        return self._pool.used

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def drop(self, request: Request) -> bool:
        """Forget a request whose client gave up; False if it does not wait."""
        if request not in self._waiting:
            return False
        self._waiting.remove(request)
        return True

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        """Run everything admitted, after admitting whom slots and memory allow, in order of arrival."""
        group = self._groups[lane]
        chunks: list[Chunk] = []
        admitted: list[Request] = []
        self.kept_out = WaitReason.STEP
        while self._waiting and self.running < self._max_num_seqs:
            request = self._waiting[0]
            if self._reserved_blocks(request) > self._pool.free:
                self.kept_out = WaitReason.BLOCKS
                break
            self._waiting.popleft()
            self._pool.take(self._reserved_blocks(request))
            self.running += 1
            admitted.append(request)
            chunks.append(Chunk(request, request.prompt_tokens, 0, last=True))
        if self.running >= self._max_num_seqs:
            self.kept_out = WaitReason.SLOTS
        if not group.size and not chunks:
            return Wait()
        return Batch(
            decodes=group.size,
            decode_context=group.context + group.size,
            chunks=chunks,
            admitted=admitted,
            preempted=[],
            stalled=[],
            repeats=1 if chunks else FOREVER,
            sealed=bool(self._waiting) or self.running >= self._max_num_seqs,
        )

    def update(self, batch: Batch, steps: int, finished: Iterable[Request], lane: int = 0) -> None:
        """Let decodes gain tokens, new requests join them, finished ones leave."""
        group = self._groups[lane]
        group.advance(steps)
        for request, *_ in batch.chunks:
            request.computed = request.prompt_tokens
            group.join(request)
        for request in finished:
            group.leave(request)
            self._pool.give(self._reserved_blocks(request))
            self.running -= 1

    def _reserved_blocks(self, request: Request) -> int:
        longest = min(request.prompt_tokens + request.max_tokens, self._max_model_len)
        return blocks_for(longest, self._pool.block_size)


ORCA = Engine(
    "orca",
    "Orca",
    OrcaPolicy,
    presets=(
        EnginePreset(
            "orca", "orca", 16, 0.90, no_defaults, source="Orca (OSDI 2022); memory share assumed as in vLLM"
        ),
    ),
)
