"""What Dynamo's router keeps: blocks and uncomputed prompts in flight, and blocks sent a short while ago."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

from simserve.core import Request
from simserve.router.base import Prompt, Target, leading
from simserve.units import NS_PER_S


@dataclass
class Sent:
    """A request in flight."""

    worker: int
    prompt: Prompt
    prefill_tokens: int
    """Prompt tokens that the worker was expected to compute; 0 once its first token was shown."""


class Active:
    """What one worker has in flight."""

    def __init__(self, block_size: int, key_tokens: int) -> None:
        """Counts in KV blocks of `block_size` tokens; a key stands for `key_tokens`."""
        self.prefill_tokens = 0
        """Prompt tokens to compute."""
        self.requests = 0
        """Requests in flight."""
        self._block_size = block_size
        self._key_blocks = -(-key_tokens // block_size)
        self._blocks = 0
        self._holders: Counter[int] = Counter()
        """Requests that have each key: what several share takes its blocks once."""

    def blocks_with(self, prompt: Prompt) -> int:
        """Return the blocks in flight if a further prompt came."""
        new_keys = len(prompt.keys) - leading(prompt.keys, self._holders)
        return self._blocks + new_keys * self._key_blocks + self._rest_blocks(prompt)

    def add(self, sent: Sent) -> None:
        """A request was sent here."""
        self._blocks = self.blocks_with(sent.prompt)
        self._holders.update(sent.prompt.keys)
        self.prefill_tokens += sent.prefill_tokens
        self.requests += 1

    def computed(self, sent: Sent) -> None:
        """A request's prompt is computed."""
        self.prefill_tokens -= sent.prefill_tokens
        sent.prefill_tokens = 0

    def remove(self, sent: Sent) -> None:
        """A request has ended."""
        self.computed(sent)
        self.requests -= 1
        self._blocks -= self._rest_blocks(sent.prompt)
        for key in sent.prompt.keys:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self._blocks -= self._key_blocks

    def _rest_blocks(self, prompt: Prompt) -> int:
        return -(-prompt.rest_tokens // self._block_size)


class AssumedCache:
    """Blocks that were sent to one worker within the last `ttl_ns`, taken as cached."""

    def __init__(self, ttl_ns: int) -> None:
        """Each prompt makes all of its blocks last for `ttl_ns` more."""
        self._ttl_ns = ttl_ns
        self._ends_ns: OrderedDict[int, int] = OrderedDict()

    def store(self, prompt: Prompt, now_ns: int) -> None:
        """Note the blocks of a prompt."""
        for key in prompt.keys:
            self._ends_ns[key] = now_ns + self._ttl_ns
            self._ends_ns.move_to_end(key)

    def overlap(self, prompt: Prompt, now_ns: int) -> int:
        """Return how many keys of the prompt, from the first on, are assumed cached."""
        ends_ns = self._ends_ns
        while ends_ns and next(iter(ends_ns.values())) <= now_ns:
            ends_ns.popitem(last=False)
        return leading(prompt.keys, ends_ns)


# The queue of Dynamo's router: requests wait here, not at a worker, while every worker has much to compute.
#
# A worker is busy while the prompt tokens that it has in flight exceed `router_queue_threshold` times its
# max_num_batched_tokens. A request is held if all are busy, or if others are held already. Whenever a prompt
# is
# computed or a request ends, held ones go on, best key first, for as long as not all workers are busy.
# Follows
# kv-router's scheduling/queue.rs and policy_queue.rs (sources of 2026). Left out: strict priorities, classes
# with queues of their own, limits of the queue.

QueuePolicy = Literal["fcfs", "lcfs", "wspt"]


class RouterQueue:
    """Held requests, in the order of the queue policy."""

    def __init__(self, threshold: float | None, policy: QueuePolicy) -> None:
        """`threshold` in token budgets of one step; None: nobody is held."""
        self._threshold = threshold
        self._policy: QueuePolicy = policy
        self._heap: list[tuple[float, int, Request]] = []
        self._arrived = 0

    def holds(self, actives: Sequence[Active], targets: Sequence[Target]) -> bool:
        """Return whether a request that arrives now has to wait."""
        return self._threshold is not None and (bool(self._heap) or self._all_busy(actives, targets))

    def put(self, request: Request, cached_tokens: int, now_ns: int) -> None:
        """Hold a request; `cached_tokens` is the most that any worker has of its prompt."""
        self._arrived += 1
        heappush(self._heap, (self._key(request, cached_tokens, now_ns), self._arrived, request))

    def pop(self, actives: Sequence[Active], targets: Sequence[Target]) -> Request | None:
        """Return the request that goes on now, if any may."""
        if not self._heap or self._all_busy(actives, targets):
            return None
        return heappop(self._heap)[2]

    def withdraw(self, request: Request) -> None:
        """Take a request out."""
        self._heap = [entry for entry in self._heap if entry[2].id != request.id]
        heapify(self._heap)

    def _all_busy(self, actives: Sequence[Active], targets: Sequence[Target]) -> bool:
        assert self._threshold is not None
        for active, target in zip(actives, targets, strict=True):
            budget = target.max_num_batched_tokens
            if budget is None or active.prefill_tokens <= self._threshold * budget:
                return False
        return True

    def _key(self, request: Request, cached_tokens: int, now_ns: int) -> float:
        """Return the key of a request: the least goes first. A unit of priority is worth a second."""
        priority, arrival_s = max(0, request.priority), now_ns / NS_PER_S
        if self._policy == "fcfs":
            return arrival_s - priority
        if self._policy == "lcfs":
            return -arrival_s - priority
        return -(1 + priority) / max(1, request.prompt_tokens - cached_tokens)
