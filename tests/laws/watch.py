"""A policy under observation: every call is checked and recorded, and passed on unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from simserve.core import Batch, Request, Wait
from tests.laws.checkers import LawBroken


class Decision(NamedTuple):
    """A batch as plain numbers, and for how many steps it was run."""

    now_ns: int
    lane: int
    decodes: int
    decode_context: int
    chunks: tuple[tuple[int, int, int, bool], ...]
    admitted: tuple[int, ...]
    preempted: tuple[int, ...]
    stalled: tuple[int, ...]
    steps: int
    running: int


class WatchedPolicy:
    """Checks the KV pool and the clock after every call, and that decisions are reported in order."""

    def __init__(self, policy: Any, kv_blocks: int) -> None:
        self.policy = policy
        self.kv_blocks = kv_blocks
        self.decisions: list[Decision] = []
        self.peak_running = 0
        self._added: set[int] = set()
        self._finished: set[int] = set()
        self._now_ns = 0
        self._open: dict[int, tuple[Batch, Decision]] = {}

    def __getattr__(self, name: str) -> Any:
        """Offer to routers what the policy offers (see `policy.base.Observable`)."""
        return getattr(self.policy, name)

    @property
    def running(self) -> int:
        return self.policy.running

    @property
    def waiting(self) -> int:
        return self.policy.waiting

    @property
    def kv_used_blocks(self) -> int:
        return self.policy.kv_used_blocks

    def add(self, request: Request) -> None:
        self._added.add(request.id)
        self.policy.add(request)
        self._check()

    def drop(self, request: Request) -> bool:
        dropped = self.policy.drop(request)
        if dropped:
            self._finished.add(request.id)
        self._check()
        return dropped

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        if now_ns < self._now_ns:
            raise LawBroken(f"the clock went back from {self._now_ns} to {now_ns}")
        if lane in self._open:
            raise LawBroken(f"asked for a batch of lane {lane} before its last one was reported")
        self._now_ns = now_ns
        batch = self.policy.next_batch(now_ns, lane)
        self._check()
        if isinstance(batch, Batch):
            self._open[lane] = (batch, self._plain(batch, now_ns, lane))
        return batch

    def update(self, batch: Batch, steps: int, finished: Iterable[Request], lane: int = 0) -> None:
        expected, decision = self._open.pop(lane)
        if batch is not expected or not 1 <= steps <= batch.repeats:
            raise LawBroken(f"lane {lane} reported {steps} steps of another batch than it was given")
        finished = list(finished)
        self._finished.update(request.id for request in finished)
        self.decisions.append(decision._replace(steps=steps))
        self.policy.update(batch, steps, finished, lane)
        self._check()

    def _plain(self, batch: Batch, now_ns: int, lane: int) -> Decision:
        self.peak_running = max(self.peak_running, self.policy.running)
        ids = lambda requests: tuple(request.id for request in requests)  # noqa: E731
        return Decision(
            now_ns,
            lane,
            batch.decodes,
            batch.decode_context,
            tuple((chunk.request.id, chunk.tokens, chunk.cached, chunk.last) for chunk in batch.chunks),
            ids(batch.admitted),
            ids(batch.preempted),
            ids(batch.stalled),
            1,
            self.policy.running,
        )

    def _check(self) -> None:
        used = self.kv_used_blocks
        if not 0 <= used <= self.kv_blocks:
            raise LawBroken(f"{used} KV blocks used of {self.kv_blocks}")
        pool = getattr(self.policy, "pool", None) or getattr(self.policy, "_pool", None)
        if pool is not None and pool.free + used != self.kv_blocks:
            raise LawBroken(f"{pool.free} KV blocks free + {used} used of {self.kv_blocks}")
        alive = len(self._added) - len(self._finished)
        if self.running + self.waiting < alive:
            raise LawBroken(f"{self.running} running + {self.waiting} waiting, but {alive} not finished")


class RecountedPolicy(WatchedPolicy):
    """Also keeps the tokens of every request one by one, and compares sums and blocks with the policy's.

    For policies without padding and without a prefix cache.
    """

    def __init__(self, policy: Any, kv_blocks: int, block_size: int, reserve: int = 0) -> None:
        """`reserve` is max_model_len where KV is set aside for the longest answer, 0 where it grows."""
        super().__init__(policy, kv_blocks)
        self._block_size = block_size
        self._reserve = reserve
        self._computed: dict[int, int] = {}
        self._requests: dict[int, Request] = {}
        self._decoding: dict[int, int] = {}
        self._moving: dict[int, list[int]] = {}

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        batch = super().next_batch(now_ns, lane)
        if isinstance(batch, Batch):
            self._schedule(batch, lane)
            self._recount()
        return batch

    def update(self, batch: Batch, steps: int, finished: Iterable[Request], lane: int = 0) -> None:
        finished = list(finished)
        super().update(batch, steps, finished, lane)
        for number in self._moving.pop(lane):
            self._computed[number] += steps - 1
        for chunk in batch.chunks:
            if chunk.last:
                self._decoding[chunk.request.id] = lane
        for request in finished:
            del self._computed[request.id], self._decoding[request.id]
        self._recount()

    def _schedule(self, batch: Batch, lane: int) -> None:
        for request in batch.preempted:
            del self._computed[request.id]
            self._decoding.pop(request.id, None)
        stalled = {request.id for request in batch.stalled}
        moving = [number for number, home in self._decoding.items() if home == lane and number not in stalled]
        for number in moving:
            self._computed[number] += 1
        self._moving[lane] = moving
        found = (batch.decodes, batch.decode_context)
        counted = (len(moving), sum(self._computed[number] for number in moving))
        if found != counted:
            raise LawBroken(f"(decodes, sum of contexts) = {found}, counted {counted}")
        for request in batch.admitted:
            self._computed[request.id] = 0
            self._requests[request.id] = request
        for chunk in batch.chunks:
            if chunk.cached != self._computed[chunk.request.id]:
                raise LawBroken(f"{chunk} goes on from {self._computed[chunk.request.id]} computed tokens")
            self._computed[chunk.request.id] += chunk.tokens

    def _recount(self) -> None:
        counted = sum(-(-self._held_tokens(number) // self._block_size) for number in self._computed)
        if counted != self.kv_used_blocks:
            raise LawBroken(f"{self.kv_used_blocks} KV blocks used, counted {counted}")

    def _held_tokens(self, number: int) -> int:
        request = self._requests[number]
        if self._reserve:
            return min(request.prompt_tokens + request.max_tokens, self._reserve)
        return self._computed[number]
