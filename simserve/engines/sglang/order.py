"""In which order the waiting queue is tried: the schedule policies of SGLang 0.5.23."""

from __future__ import annotations

import random
from collections import defaultdict

from simserve.engines.sglang.options import IN_BATCH_TOKENS, MOST_MATCHED, REFRESH_INTERVAL, SglangParams
from simserve.engines.sglang.sequence import Sequence
from simserve.kvcache.radix import Node, RadixTree
from simserve.kvcache.radix_pool import RadixPool


class QueueOrder:
    """Sorts the waiting queue before each attempt to prefill."""

    def __init__(self, params: SglangParams, pool: RadixPool, shared_content: bool) -> None:
        """`shared_content`: two requests may have tokens in common."""
        self._params = params
        self._pool = pool
        self._random = random.Random(params.random_seed)
        self._shared_content = shared_content
        self._refreshes = pool.cache and params.radix_eviction_policy == "lru"
        self._orderings = 0
        """How often somebody's place was found without a look at the cache."""

    def sort(self, waiting: list[Sequence]) -> None:
        """Put `waiting` in the order in which it will be tried, in place."""
        policy, cache = self._params.schedule_policy, self._pool.cache
        if policy == "lpm" and cache and len(waiting) <= MOST_MATCHED:
            self._longest_prefix(waiting)
        elif policy == "dfs-weight" and cache:
            self._depth_first(waiting)
        else:
            self._sort_blindly(waiting)
            if self._refreshes and waiting:
                self._refresh(waiting)

    def _sort_blindly(self, waiting: list[Sequence]) -> None:
        """Sort by an order that does not look at the cache."""
        policy = self._params.schedule_policy
        if policy == "fcfs" and self._params.enable_priority_scheduling:
            waiting.sort(key=lambda s: (-self.urgency(s), s.rank))
        elif policy == "lof":
            by_priority = self._params.enable_priority_scheduling
            waiting.sort(key=lambda s: (-self.urgency(s) if by_priority else 0, -s.request.max_tokens))
        elif policy == "random":
            self._random.shuffle(waiting)

    def _refresh(self, waiting: list[Sequence]) -> None:
        """Look up the first waiting prompts, the head last, on every 32nd ordering from the first on.

        So what is cached of them is used more recently than the rest of the cache. Where no two requests
        share a token, only of a request that was sent back anything can be cached.
        """
        due = self._orderings % REFRESH_INTERVAL == 0
        self._orderings += 1
        if due:
            for sequence in reversed(waiting[:MOST_MATCHED]):
                if self._shared_content or sequence.returned:
                    self._pool.lookup(sequence.runs(), sequence.known)

    def urgency(self, sequence: Sequence) -> int:
        """Return the priority as a number of which more is better."""
        sign = -1 if self._params.schedule_low_priority_values_first else 1
        return sign * sequence.request.priority

    def _matches(self, waiting: list[Sequence]) -> tuple[dict[Sequence, tuple[Node, int]], set[Sequence]]:
        """Look up every request; also say which ones are better served after a similar one."""
        ahead = RadixTree(1)
        found: dict[Sequence, tuple[Node, int]] = {}
        deferred: set[Sequence] = set()
        for sequence in waiting:
            runs = sequence.runs()
            node, length = self._pool.tree.match(runs, sequence.known)
            found[sequence] = node, length
            if length > IN_BATCH_TOKENS:
                continue
            if ahead.match(runs, sequence.known)[1] >= IN_BATCH_TOKENS:
                deferred.add(sequence)
            else:
                ahead.insert(runs, sequence.known)
        return found, deferred

    def _longest_prefix(self, waiting: list[Sequence]) -> None:
        found, deferred = self._matches(waiting)
        waiting.sort(key=lambda s: (s in deferred, 0 if s in deferred else -min(found[s][1], s.known - 1)))

    def _depth_first(self, waiting: list[Sequence]) -> None:
        """Order by a walk of the tree, children with more waiting requests first, each node after them."""
        found, _ = self._matches(waiting)
        here: dict[Node, list[Sequence]] = defaultdict(list)
        weight: dict[Node, int] = defaultdict(int)
        for sequence in waiting:
            node: Node | None = found[sequence][0]
            here[node].append(sequence)
            while node is not None:
                weight[node] += 1
                node = node.parent
        waiting.clear()
        stack: list[tuple[Node, bool]] = [(self._pool.tree.root, False)]
        while stack:
            node, seen = stack.pop()
            if seen:
                waiting.extend(here.get(node, ()))
                continue
            children = [child for child in node.children.values() if child in weight]
            children.sort(key=lambda child: -weight[child])
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(children))
