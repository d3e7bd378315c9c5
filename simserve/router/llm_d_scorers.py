"""Scorers of llm-d: each gives every replica a score between 0 and 1, the higher the better.

Names and formulas follow llm-d's router (precise prefix cache, load-aware, active requests, session affinity,
no-hit LRU, context length) and the Gateway API inference extension (prefix cache, queue, running requests, KV
use). Left out: the time-out of requests in flight, from which on they do not count (2 minutes).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property

from simserve.core import Request
from simserve.router.base import InFlight, PromptBlocks, Target, leading

# llm-d's approximate prefix index: which prompts were sent where, without asking the engines.
#
# Follows approximateprefix of llm-d's router and the Gateway API inference extension (sources of 2026). A
# prompt is cut into blocks of 64 tokens (smaller ones are raised to that), at most 131,072 tokens of it; each
# server has an LRU list of the blocks of the prompts that it was sent, as long as its KV cache has blocks
# (autoTune, on by default; else `lruCapacityPerServer`). It never hears what engines evict. The original
# counts four characters a token where it has no tokenizer; here tokens are tokens.

LEAST_BLOCK_TOKENS = 64
MOST_TOKENS = 131_072
LRU_CAPACITY_PER_SERVER = 31_250


class Situation:
    """One request to be placed."""

    def __init__(self, request: Request, targets: Sequence[Target], now_ns: int) -> None:
        self.request = request
        self.targets = targets
        self.now_ns = now_ns

    @cached_property
    def cached_tokens(self) -> list[int]:
        """Tokens of the prompt that each replica has cached."""
        return [target.cached_tokens(self.request, self.now_ns) for target in self.targets]


class ApproximateIndex:
    """Blocks of prompts by server, the least recently used ahead."""

    def __init__(self, prompts: PromptBlocks, lru_capacity: int | None = None) -> None:
        """`lru_capacity` blocks per server; None: as many as its KV cache has.

        Blocks are those of `prompts`, several together where these are smaller than 64 tokens.
        """
        self._prompts = prompts
        self._group = -(-LEAST_BLOCK_TOKENS // prompts.block_size)
        self._most_blocks = MOST_TOKENS // (prompts.block_size * self._group)
        self._lru_capacity = lru_capacity
        self._servers: list[OrderedDict[int, None]] = []

    def scores(self, situation: Situation) -> list[float]:
        """Return the share of the prompt's blocks that each server is believed to have."""
        self._expect(len(situation.targets))
        keys = self._keys(situation.request)
        if not keys:
            return [0.0] * len(situation.targets)
        return [leading(keys, server) / len(keys) for server in self._servers]

    def sent(self, situation: Situation, chosen: int) -> None:
        """Note that a server gets a prompt."""
        self._expect(len(situation.targets))
        server, target = self._servers[chosen], situation.targets[chosen]
        for key in reversed(self._keys(situation.request)):
            server[key] = None
            server.move_to_end(key)
        capacity = target.kv_blocks if self._lru_capacity is None else self._lru_capacity
        while len(server) > capacity:
            server.popitem(last=False)

    def _keys(self, request: Request) -> list[int]:
        """Return the keys of the prompt's blocks; each stands for all before it too."""
        return self._prompts.cut(request).keys[self._group - 1 :: self._group][: self._most_blocks]

    def _expect(self, servers: int) -> None:
        while len(self._servers) < servers:
            self._servers.append(OrderedDict())


Scorer = Callable[[Situation], list[float]]


class Memory:
    """What the scheduler remembers of its decisions."""

    def __init__(
        self, sessions: Sequence[int] | None, approximate: ApproximateIndex | None = None, older: bool = False
    ) -> None:
        """`sessions` by request id, or None; `older`: the scorers of 2025."""
        self.approximate = approximate or ApproximateIndex(PromptBlocks(None, 16))
        self.older = older
        self.in_flight = InFlight()
        self.sessions = sessions
        self.session_target: dict[int, int] = {}
        """Replica that served each session last."""
        self.cold_order: list[int] = []
        """Replicas that got requests without any hit, the one longest ago first."""

    def note(self, situation: Situation, chosen: int, *, cold: bool) -> None:
        """Remember a decision; `cold`: and, if nobody had anything of the prompt, who got it."""
        self.in_flight.sent(situation.request, chosen)
        if self.sessions is not None:
            self.session_target[self.sessions[situation.request.id]] = chosen
        if cold and not any(situation.cached_tokens):
            if chosen in self.cold_order:
                self.cold_order.remove(chosen)
            self.cold_order.append(chosen)


def scorers(
    memory: Memory, queue_threshold: int, ranges: Sequence[Sequence[int] | None] = ()
) -> dict[str, Scorer]:
    """Return all scorers by name; `queue_threshold` is that of load-aware-scorer.

    `ranges` are the prompt tokens that each replica is meant for, least and most, or None.
    """

    def active(situation: Situation) -> list[float]:
        counts = memory.in_flight.counts
        most = max(counts)
        return [(most - count) / most if most else 1.0 for count in counts]

    def load_aware(situation: Situation) -> list[float]:
        waiting = (min(target.waiting_requests, queue_threshold) for target in situation.targets)
        return [0.5 * (1 - count / queue_threshold) for count in waiting]

    def session_affinity(situation: Situation) -> list[float]:
        last = None
        if memory.sessions is not None:
            last = memory.session_target.get(memory.sessions[situation.request.id])
        return [float(index == last) for index in range(len(situation.targets))]

    def no_hit_lru(situation: Situation) -> list[float]:
        count = len(situation.targets)
        if any(situation.cached_tokens):
            return [0.5] * count
        unused = [index for index in range(count) if index not in memory.cold_order]
        rank = {index: place for place, index in enumerate(unused + memory.cold_order)}
        return [1 - rank[index] / (count - 1) if count > 1 else 1.0 for index in range(count)]

    return {
        "active-request-scorer": active,
        "context-length-aware": lambda situation: [
            _context_length(situation.request.prompt_tokens, found) for found in ranges
        ],
        "kv-cache-utilization-scorer": _kv_cache_utilization,
        "load-aware-scorer": load_aware,
        "no-hit-lru-scorer": no_hit_lru,
        "precise-prefix-cache-scorer": _longest_to_shortest if memory.older else _share_of_blocks,
        "prefix-cache-scorer": memory.approximate.scores,
        "queue-scorer": lambda situation: _fewest([target.waiting_requests for target in situation.targets]),
        "running-requests-size-scorer": lambda situation: _fewest(
            [target.running_requests for target in situation.targets]
        ),
        "session-affinity-scorer": session_affinity,
    }


def _share_of_blocks(situation: Situation) -> list[float]:
    """The share of the prompt's full blocks that the replica has cached; 0 if there is none."""
    return [
        target_tokens // target.block_size / blocks if blocks else 0.0
        for target, target_tokens in zip(situation.targets, situation.cached_tokens, strict=True)
        for blocks in (situation.request.prompt_tokens // target.block_size,)
    ]


def _longest_to_shortest(situation: Situation) -> list[float]:
    """1 for the longest cached prefix, 0 for the shortest, in between in proportion; 1 if all are equal."""
    most, least = max(situation.cached_tokens), min(situation.cached_tokens)
    if most == least:
        return [1.0] * len(situation.targets)
    return [(tokens - least) / (most - least) for tokens in situation.cached_tokens]


_OUTSIDE = 0.3
"""Below it: prompts outside a range; above it: inside."""


def _context_length(tokens: int, meant_for: Sequence[int] | None) -> float:
    """Narrow ranges and much headroom score high; outside a range the nearer one; 0.5 without a range."""
    if meant_for is None:
        return 0.5
    least, most = meant_for
    if not least <= tokens <= most:
        return _OUTSIDE / (1 + max(tokens - most, least - tokens) / 1000)
    width = most - least
    if not width:
        return 1.0
    return _OUTSIDE + (1 - _OUTSIDE) * (0.7 / (1 + width / 10_000) + 0.3 * (most - tokens) / width)


def _kv_cache_utilization(situation: Situation) -> list[float]:
    return [1 - target.kv_use(situation.now_ns) for target in situation.targets]


def _fewest(counts: list[int]) -> list[float]:
    """1 for the fewest, 0 for the most, in between in proportion; 1 if all are equal."""
    most, least = max(counts), min(counts)
    return [(most - count) / (most - least) if most > least else 1.0 for count in counts]
