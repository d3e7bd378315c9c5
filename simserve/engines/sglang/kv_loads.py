"""Prompts whose KV comes up from a tier below HBM, in the manner of SGLang's hierarchical cache (0.5.23).

A request whose prompt goes on in a tier is left in the queue while the pages are loaded, and those behind it
are tried; when the pages have arrived they enter the radix tree, and the request is tried before all others.
Whoever wants pages that another is loading waits in the queue as well. In the engine, pages in host memory
come up layer by layer while the rest of the prompt is computed; here the load comes first.
"""

from __future__ import annotations

import heapq

from simserve.core import Request
from simserve.engines.sglang.sequence import Sequence
from simserve.kvcache.content import RunContent
from simserve.kvcache.radix import Node
from simserve.kvcache.radix_pool import Holding, RadixPool
from simserve.kvcache.tiers import Plan, TierCache


class Loads:
    """Loads in flight, and landed ones whose requests still wait."""

    def __init__(self, pool: RadixPool, tiers: TierCache, content: RunContent) -> None:
        """`content` names the pages of a request's text as the pool's tree names its own."""
        self.tiers = tiers
        self._pool = pool
        self._content = content
        self._flights: list[tuple[int, int, Sequence]] = []
        """Heap of (end, order, sequence)."""
        self._started = 0
        self._held: dict[int, Holding] = {}
        """What loading and landed requests hold, by id."""
        self._landed: dict[int, Sequence] = {}
        self._loader: dict[int, int] = {}
        """Key of a page being loaded -> id of the request that loads it."""
        self._rest: dict[int, float] = {}
        """Tokens that each of them will still need."""
        self._plans: dict[int, Plan] = {}
        """What was found and not loaded for a request that is being tried."""

    @property
    def reserved(self) -> float:
        """Tokens that loading and landed requests will still need."""
        return sum(self._rest.values())

    @property
    def next_ns(self) -> int | None:
        """When the next load lands."""
        return self._flights[0][0] if self._flights else None

    def order(self, queue: list[Sequence]) -> list[Sequence]:
        """Return the queue with landed requests ahead and without those that load."""
        if not self._held:
            return queue
        waiting = (sequence for sequence in queue if sequence.request.id not in self._held)
        return [*self._landed.values(), *waiting]

    def land(self, now_ns: int) -> None:
        """Let what has arrived by now enter the tree; call before each decision."""
        self.tiers.at(now_ns)
        while self._flights and self._flights[0][0] <= now_ns:
            _, _, sequence = heapq.heappop(self._flights)
            holding = self._held[sequence.request.id]
            request = sequence.request
            self._pool.cache_prompt(
                holding, sequence.runs(), holding.stored, request.prompt_tokens, request.priority
            )
            self._landed[sequence.request.id] = sequence
            self._forget_keys(sequence)

    def rest_of(self, sequence: Sequence) -> float:
        """Return the tokens reserved for a request that has landed; 0 for all others."""
        return self._rest.get(sequence.request.id, 0)

    def waits(self, sequence: Sequence) -> bool:
        """Return True if another request is loading what this one needs next."""
        keys = self._keys_below(sequence)
        return bool(keys) and keys[0] in self._loader

    def tokens_by_kind(self, request: Request, prefix: int, now_ns: int) -> dict[str, int]:
        """Return the tokens of a request's prompt beyond its `prefix` in HBM, by kind of tier."""
        size = self._pool.page_size
        keys = self._content.keys(request, (request.prompt_tokens - 1) // size)[prefix // size :]
        self._content.forget(request)
        return self.tiers.tokens_by_kind(keys, now_ns)

    def plan(self, sequence: Sequence, now_ns: int) -> Plan:
        """Return what the tiers hold of a request beyond its prefix in HBM, and what to load of it."""
        found = self.tiers.plan(
            self._keys_below(sequence), sequence.known, sequence.prefix // self._pool.page_size, now_ns
        )
        self._plans[sequence.request.id] = found
        return found

    def hold(self, sequence: Sequence, node: Node | None) -> Holding:
        """Keep the request's prefix in HBM, which ends at `node`."""
        holding = Holding()
        self._pool.hold(holding, node, sequence.prefix)
        return holding

    def let_go(self, holding: Holding) -> None:
        """Undo `hold`."""
        self._pool.drop(holding)

    def start(self, sequence: Sequence, holding: Holding, plan: Plan, wanted: float, now_ns: int) -> None:
        """Begin to load behind the prefix held; pages are taken now, and the rest of `wanted` is reserved."""
        tokens = plan.blocks * self._pool.page_size
        self._pool.make_room(tokens)
        self._pool.free -= tokens
        holding.stored += tokens
        identity = sequence.request.id
        self._use(sequence)
        self._started += 1
        heapq.heappush(self._flights, (self.tiers.load(plan, now_ns), self._started, sequence))
        self._held[identity] = holding
        self._rest[identity] = wanted - tokens
        for key in plan.keys[: plan.blocks]:
            self._loader.setdefault(key, identity)

    def admitted(self, sequence: Sequence) -> None:
        """A request is admitted, and holds its prefix itself."""
        identity = sequence.request.id
        plan = self._plans.pop(identity, None)
        if identity in self._held:
            self._pool.drop(self._held.pop(identity))
            del self._landed[identity], self._rest[identity]
        else:
            self._use(sequence)
            if plan is not None:
                self.tiers.refused(plan)

    def cancel(self) -> bool:
        """Give back all that is held here, because running requests need it; return whether there was any."""
        if not self._held:
            return False
        for holding in self._held.values():
            self._pool.drop(holding)
        for kept in (self._flights, self._held, self._landed, self._rest, self._loader):
            kept.clear()
        return True

    def forget(self, request: Request) -> None:
        """Drop what is remembered, and held, of a request that ended or whose client gave up."""
        self._plans.pop(request.id, None)
        holding = self._held.pop(request.id, None)
        if holding is not None:
            self._pool.drop(holding)
            self._landed.pop(request.id, None)
            del self._rest[request.id]
            self._flights = [flight for flight in self._flights if flight[2].request is not request]
            heapq.heapify(self._flights)
            self._loader = {key: loader for key, loader in self._loader.items() if loader != request.id}
        self._content.forget(request)

    # -- parts -----------------------------------------------------------------------------------------

    def _use(self, sequence: Sequence) -> None:
        self.tiers.used(self._content.keys(sequence.request, sequence.prefix // self._pool.page_size))

    def _keys_below(self, sequence: Sequence) -> list[int]:
        """Return the keys of the full pages after the prefix, at least one token being left to compute."""
        size = self._pool.page_size
        return self._content.keys(sequence.request, (sequence.known - 1) // size)[sequence.prefix // size :]

    def _forget_keys(self, sequence: Sequence) -> None:
        for key in self._content.keys(sequence.request, (sequence.known - 1) // self._pool.page_size):
            if self._loader.get(key) == sequence.request.id:
                del self._loader[key]
