"""Static (request-level) batching, as in FasterTransformer behind a batching front end.

The engine waits until `batch_size` requests are there or the oldest has waited `timeout_ms`, pads all prompts
to the longest, computes them in one step, then decodes all sequences until the longest answer ends. Slots and
KV are released together; sequences that ended early go on costing time as padding. Tokens are streamed, so
a request's last token is shown when it is produced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pydantic import Field

from simserve.core import Batch, Chunk, Request, Wait, WaitReason
from simserve.engines.base import POLICIES, PolicyParams, Scheduler
from simserve.engines.decode_batch import FOREVER
from simserve.engines.engine import Engine, EnginePreset, no_defaults
from simserve.kvcache import blocks_for
from simserve.units import ms_to_ns


class StaticParams(PolicyParams):
    """Settings of static batching."""

    batch_size: int = Field(default=8, ge=1, description="Requests that make a batch.")
    timeout_ms: float = Field(
        default=50.0, ge=0, description="Longest that the oldest request waits for company."
    )

    @property
    def most_sequences(self) -> int:
        """The batch."""
        return self.batch_size


@POLICIES.register("static")
class StaticPolicy(Scheduler):
    """One padded batch at a time."""

    Params = StaticParams
    can_drop = True

    def __init__(
        self, params: StaticParams, *, kv_blocks: int, block_size: int, max_model_len: int, lanes: int = 1
    ) -> None:
        """KV is set aside for every sequence at the longest possible length; one lane at a time has work."""
        self._batch_size = params.batch_size
        self._timeout_ns = ms_to_ns(params.timeout_ms)
        self._kv_blocks = kv_blocks
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._waiting: deque[Request] = deque()
        self._batch: list[Request] = []
        self._lane = 0
        """Lane of the batch: the one that asked when it was formed."""
        self._unfinished = 0
        self._padded_prompt = 0
        self._decode_steps = 0
        self.kv_used_blocks = 0
        self.kept_out = WaitReason.PACE

    @property
    def running(self) -> int:
        """Sequences of the batch, ended ones included until it is released."""
        return len(self._batch)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

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
        """Go on with the batch; else form one; else wait for company."""
        if self._batch and lane != self._lane:
            return Wait()
        if self._batch:
            size = len(self._batch)
            context = size * (self._padded_prompt + self._decode_steps + 1)
            return Batch(size, context, [], [], [], [], repeats=FOREVER, sealed=True)
        if not self._waiting:
            return Wait()
        self.kept_out = WaitReason.PACE
        deadline_ns = self._waiting[0].arrival_ns + self._timeout_ns
        if len(self._waiting) < self._batch_size and now_ns < deadline_ns:
            return Wait(deadline_ns)
        self._lane = lane
        return self._form_batch()

    def update(self, batch: Batch, steps: int, finished: Iterable[Request], lane: int = 0) -> None:
        """Count the steps; release everything when the last answer has ended."""
        if not batch.chunks:
            self._decode_steps += steps
        self._unfinished -= sum(1 for _ in finished)
        if not self._unfinished:
            self._batch = []
            self.kv_used_blocks = 0

    def _form_batch(self) -> Batch:
        """Take the oldest requests that fit together when all are padded to the longest."""
        prompt = longest = 0
        self.kept_out = WaitReason.BATCH
        while self._waiting and len(self._batch) < self._batch_size:
            request = self._waiting[0]
            prompt_with = max(prompt, request.prompt_tokens)
            longest_with = min(max(longest, request.prompt_tokens + request.max_tokens), self._max_model_len)
            blocks = (len(self._batch) + 1) * blocks_for(longest_with, self._block_size)
            if self._batch and blocks > self._kv_blocks:
                self.kept_out = WaitReason.BLOCKS
                break
            prompt, longest = prompt_with, longest_with
            self._batch.append(self._waiting.popleft())
            self.kv_used_blocks = blocks
        if len(self._batch) == self._batch_size:
            self.kept_out = WaitReason.SLOTS
        self._padded_prompt, self._decode_steps, self._unfinished = prompt, 0, len(self._batch)
        chunks = [Chunk(request, prompt, 0, last=True) for request in self._batch]
        return Batch(0, 0, chunks, list(self._batch), [], [])


STATIC = Engine(
    "static",
    "static batching",
    StaticPolicy,
    presets=(
        EnginePreset(
            "static",
            "static",
            16,
            0.90,
            no_defaults,
            source="static batching; memory share assumed as in vLLM",
        ),
    ),
)
