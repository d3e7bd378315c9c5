"""Requests whose KV comes up from a tier below HBM, as vLLM treats them with an asynchronous KV connector.

A request that begins to load is set aside with its blocks held and others are admitted meanwhile; when the
load is over it is admitted before the queue, the loaded tokens counting as computed. A request that wants
blocks which another is loading waits for that one and then finds them in HBM.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Protocol

from simserve.core import Request
from simserve.engines.decode_batch import FOREVER, DecodeGroup
from simserve.kvcache import Content, PrefixCache, blocks_for
from simserve.kvcache.tiers import Plan, TierCache

# The waiting queue of vLLM: first come first served, or a heap by priority.


class WaitingQueue(Protocol):
    """Requests that wait to be admitted."""

    def __len__(self) -> int: ...

    def add(self, request: Request) -> None:
        """Add an arriving request."""
        ...

    def put_back(self, request: Request) -> None:
        """Return a preempted request."""
        ...

    def head(self) -> Request:
        """Return the request that is next, without removing it."""
        ...

    def pop(self) -> Request:
        """Remove and return the head."""
        ...

    def remove(self, request: Request, /) -> None:
        """Remove a request that ended while it waited."""
        ...


class FcfsQueue(deque[Request]):
    """Arrivals go to the end, preempted requests to the front."""

    def add(self, request: Request) -> None:
        """Add an arriving request."""
        self.append(request)

    def put_back(self, request: Request) -> None:
        """Return a preempted request to the front."""
        self.appendleft(request)

    def head(self) -> Request:
        """Return the oldest."""
        return self[0]

    def pop(self) -> Request:
        """Remove and return the oldest."""
        return self.popleft()


def priority_key(request: Request) -> tuple[int, int, int]:
    """Return vLLM's order: lower priority value first, then arrival, then id."""
    return (request.priority, request.arrival_ns, request.id)


class PriorityQueue:
    """A heap on (priority, arrival, id); preempted requests take their place by the same key."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int], Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Add a request in its place."""
        heapq.heappush(self._heap, (priority_key(request), request))

    put_back = add

    def head(self) -> Request:
        """Return the request with the smallest key."""
        return self._heap[0][1]

    def pop(self) -> Request:
        """Remove and return the request with the smallest key."""
        return heapq.heappop(self._heap)[1]

    def remove(self, request: Request, /) -> None:
        """Remove a request that ended while it waited."""
        self._heap.remove((priority_key(request), request))
        heapq.heapify(self._heap)


class Loads:
    """Loads in flight, requests that wait for them, and landed ones that are still to be admitted."""

    def __init__(self, pool: PrefixCache, tiers: TierCache, content: Content, queue: WaitingQueue) -> None:
        """Connects the tiers to the pool; requests that waited for others' loads go back to `queue`."""
        self.tiers = tiers
        self._pool = pool
        self._content = content
        self._queue = queue
        pool.below = tiers
        self._flights: list[tuple[int, int, Request, int]] = []
        """Heap of (end, order, request, blocks it will have)."""
        self._started = 0
        self._landed: deque[Request] = deque()
        self._followers: dict[int, list[Request]] = {}
        """Requests that wait for another's load, by the id of that one."""
        self._loader: dict[int, int] = {}
        """Key of a block being loaded -> id of the request that loads it."""
        self.reserved = 0
        """Free blocks that loading and landed requests will still need: what makes them sure to fit."""

    @property
    def waiting(self) -> int:
        """Requests in here."""
        followers = sum(len(waiting) for waiting in self._followers.values())
        return len(self._flights) + len(self._landed) + followers

    @property
    def next_ns(self) -> int | None:
        """When the next load lands."""
        return self._flights[0][0] if self._flights else None

    @property
    def landed(self) -> Request | None:
        """The landed request that is next to be admitted."""
        return self._landed[0] if self._landed else None

    def land(self, now_ns: int) -> None:
        """Let loads that are over by now enter the prefix cache; call before each decision."""
        self.tiers.at(now_ns)
        while self._flights and self._flights[0][0] <= now_ns:
            _, _, request, blocks = heapq.heappop(self._flights)
            self._pool.fill(request, blocks)
            request.cached = request.computed
            self._landed.append(request)
            for key in self._content.keys(request, blocks):
                if self._loader.get(key) == request.id:
                    del self._loader[key]
            for follower in reversed(self._followers.pop(request.id, ())):
                self._queue.put_back(follower)

    def admitted(self, request: Request) -> None:
        """The landed request at the head is admitted."""
        self._landed.remove(request)
        self.reserved -= self._rest(request)

    def kept_from(self, request: Request) -> int:
        """Return the free blocks that `request` must leave for those in here."""
        return self.reserved - (self._rest(request) if request is self.landed else 0)

    def follow(self, request: Request, hits: int) -> bool:
        """Set a request aside if another is loading what it needs next; return whether it was."""
        keys = self._keys_below(request, hits)
        leader = self._loader.get(keys[0]) if keys else None
        if leader is None:
            return False
        self._followers.setdefault(leader, []).append(request)
        return True

    def tokens_by_kind(self, request: Request, hits: int, now_ns: int) -> dict[str, int]:
        """Return the tokens of a request's prompt beyond its `hits` blocks in HBM, by kind of tier."""
        return self.tiers.tokens_by_kind(self._keys_below(request, hits), now_ns)

    def plan(self, request: Request, hits: int, now_ns: int) -> Plan:
        """Return what the tiers hold of a request beyond its `hits` blocks in HBM, and what to load of it."""
        return self.tiers.plan(self._keys_below(request, hits), request.known, hits, now_ns)

    def start(self, request: Request, hits: int, plan: Plan, now_ns: int) -> None:
        """Begin to load; the blocks are held from now on."""
        end_ns = self.tiers.load(plan, now_ns)
        self._hit(request, hits)
        self._pool.hold(request, hits, plan.blocks)
        self._started += 1
        heapq.heappush(self._flights, (end_ns, self._started, request, hits + plan.blocks))
        for key in plan.keys[: plan.blocks]:
            self._loader.setdefault(key, request.id)
        request.computed = (hits + plan.blocks) * self._pool.block_size
        self.reserved += self._rest(request)

    def computed_instead(self, request: Request, hits: int, plan: Plan) -> None:
        """A request is admitted whose found blocks are not worth loading."""
        self._hit(request, hits)
        self.tiers.refused(plan)

    def steps_alike(self, group: DecodeGroup, needed: int, whole_prompts: bool) -> int:
        """Return for how many steps of a run nothing happens here that would tell a step from the next.

        A queue whose head is kept out by the blocks of its whole prompt stays as it is. One kept out by a
        chunk (or by its length, chunking being off) might begin to load as links become free. And the write
        of what HBM drops begins at its own step. `needed` blocks are those of the first step, taken already.
        """
        if self._queue and not whole_prompts:
            return 1
        if self.tiers.drops_are_written:
            return max(1, group.steps_within(self._pool.blanks + needed))
        return FOREVER

    # -- parts -----------------------------------------------------------------------------------------

    def _hit(self, request: Request, hits: int) -> None:
        self.tiers.used(self._content.keys(request, hits))

    def _keys_below(self, request: Request, hits: int) -> list[int]:
        """Return the keys of the full blocks after the hits, at least one token being left to compute."""
        return self._content.keys(request, (request.known - 1) // self._pool.block_size)[hits:]

    def _rest(self, request: Request) -> int:
        """Return the blocks that a request needs beyond those it holds."""
        size = self._pool.block_size
        return blocks_for(request.known, size) - request.computed // size
