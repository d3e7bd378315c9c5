"""llm-d's approximate prefix index: which prompts were sent where, without asking the engines.

Follows approximateprefix of llm-d's router and the Gateway API inference extension (sources of 2026). A
prompt is cut into blocks of 64 tokens (smaller ones are raised to that), at most 131,072 tokens of it; each
server has an LRU list of the blocks of the prompts that it was sent, as long as its KV cache has blocks
(autoTune, on by default; else `lruCapacityPerServer`). It never hears what engines evict. The original
counts four characters a token where it has no tokenizer; here tokens are tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

from simserve.core import Request
from simserve.router.base import Target
from simserve.router.prompt_blocks import PromptBlocks, leading

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
