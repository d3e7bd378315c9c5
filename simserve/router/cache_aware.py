"""SGLang's gateway: the worker with the longest matching prompt, unless load is out of balance.

Follows the `cache_aware` policy of the SGLang model gateway (sources of 2026; defaults as its command line
has them). Load is requests in flight. Out of balance means max - min > abs and max > rel * min: then the
least loaded worker is taken, else the best match if it covers more than `cache_threshold` of the prompt,
else the least loaded worker, among equals the one that has been sent fewest requests so far (until 2025: the
worker with the smallest tree). The tree holds what was sent, not what engines still have. The original
matches text; here a token is `chars_per_token` characters and matches end at block ends. Left out: several
models, failing workers, the variant that follows KV events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Literal

from pydantic import Field

from simserve.core import Request
from simserve.kvcache import Content
from simserve.router.base import ROUTERS, Known, Prompt, PromptBlocks, Router, StateParams, Target
from simserve.units import seconds_to_ns

# What a gateway believes to be cached where: every prompt that it sent, per worker, least recently used out.
#
# Follows the tree of SGLang's router, with blocks of tokens for characters of text. A key stands for its
# block
# and all before it, so the tree is a table of blocks with their parents. It never hears what engines evict.

Key = int | tuple[str, int]
"""A block's key, or that of the rest of one prompt."""


class _Node:
    """A block (or the rest of a prompt), and who has it."""

    __slots__ = ("accessed", "below", "parent", "tokens")

    def __init__(self, parent: Key | None, tokens: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.accessed: dict[int, int] = {}
        """Time of last use by worker, in order of first use."""
        self.below: dict[int, int] = {}
        """Number of next blocks by worker, where not 0."""


class PrefixTree:
    """Blocks of prompts with the workers that got them."""

    def __init__(self, block_size: int) -> None:
        """Blocks of `block_size` tokens."""
        self.sizes: dict[int, int] = {}
        """Tokens by worker."""
        self._block_size = block_size
        self._nodes: dict[Key, _Node] = {}
        self._clock = 0

    def insert(self, request_id: int, prompt: Prompt, worker: int) -> None:
        """Note that a prompt was sent to `worker`."""
        self._clock += 1
        parent: Key | None = None
        for key in prompt.keys:
            self._add(key, self._block_size, parent, worker)
            parent = key
        if prompt.rest_tokens:
            self._add(("rest of", request_id), prompt.rest_tokens, parent, worker)

    def match(self, prompt: Prompt) -> tuple[int, int | None]:
        """Return the tokens of the longest known beginning, and the worker that has had its end longest.

        The original takes whichever worker its concurrent map lists first. Counts as a use by that worker.
        """
        path: list[_Node] = []
        for key in prompt.keys:
            node = self._nodes.get(key)
            if node is None:
                break
            path.append(node)
        if not path:
            return 0, None
        worker = next(iter(path[-1].accessed))
        self._clock += 1
        for node in path:
            node.accessed[worker] = self._clock
        return len(path) * self._block_size, worker

    def evict(self, most_tokens: float) -> None:
        """Drop the least recently used ends of prompts of each worker until it has at most `most_tokens`."""
        for worker, size in self.sizes.items():
            if size > most_tokens:
                self._evict(worker, most_tokens)

    def _add(self, key: Key, tokens: int, parent: Key | None, worker: int) -> None:
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = _Node(parent, tokens)
        if worker not in node.accessed:
            self.sizes[worker] = self.sizes.get(worker, 0) + tokens
            if parent is not None:
                below = self._nodes[parent].below
                below[worker] = below.get(worker, 0) + 1
        node.accessed[worker] = self._clock

    def _evict(self, worker: int, most_tokens: float) -> None:
        leaves = [
            (node.accessed[worker], place, key)
            for place, (key, node) in enumerate(self._nodes.items())
            if worker in node.accessed and worker not in node.below
        ]
        heapify(leaves)
        while leaves and self.sizes[worker] > most_tokens:
            _, place, key = heappop(leaves)
            parent = self._drop(key, worker)
            if parent is not None and worker not in self._nodes[parent].below:
                heappush(leaves, (self._nodes[parent].accessed[worker], place, parent))

    def _drop(self, key: Key, worker: int) -> Key | None:
        """Take a leaf from a worker; return its parent."""
        node = self._nodes[key]
        self.sizes[worker] -= node.tokens
        del node.accessed[worker]
        if not node.accessed:
            del self._nodes[key]
        if node.parent is not None:
            below = self._nodes[node.parent].below
            below[worker] -= 1
            if not below[worker]:
                del below[worker]
        return node.parent


class CacheAwareParams(StateParams):
    """Settings under the gateway's own names."""

    cache_threshold: float = Field(
        default=0.3, ge=0, le=1, description="Share of the prompt that must match to follow the match."
    )
    balance_abs_threshold: int = Field(
        default=64, ge=0, description="Difference of requests in flight that counts as out of balance."
    )
    balance_rel_threshold: float = Field(
        default=1.5, ge=0, description="Ratio of requests in flight that counts as out of balance."
    )
    eviction_interval_secs: float = Field(
        default=120.0, ge=0, le=1e9, description="Time between evictions from the tree; 0: never."
    )
    max_tree_size: int = Field(
        default=1 << 26, ge=0, description="Characters per worker that an eviction leaves in the tree."
    )
    chars_per_token: float = Field(
        default=4.0, gt=0, description="Characters of text per token (assumed), for max_tree_size."
    )
    version: Literal["2026", "2025"] = Field(
        default="2026",
        description="Year of the source that is followed; in 2025 a prompt without a match went to the "
        "smallest tree, now to the least loaded worker.",
    )


@ROUTERS.register("cache_aware")
class CacheAwareRouter(Router):
    """Longest known prefix while load is in balance, least load otherwise."""

    Params = CacheAwareParams

    def __init__(
        self, params: CacheAwareParams, *, seed: int, content: Content | None = None, block_size: int = 16
    ) -> None:
        """Nothing is random. Without `content` no prompts match, and every prompt is a miss."""
        self.refresh_ns = params.refresh_ns
        self._params = params
        self._prompts = PromptBlocks(content, block_size)
        self.assumptions = self._prompts.assumptions
        self._tree = PrefixTree(block_size)
        self._most_tokens = params.max_tree_size / params.chars_per_token
        self._interval_ns = seconds_to_ns(params.eviction_interval_secs)
        self._evicted = 0
        """Evictions made so far."""
        self._processed: Counter[int] = Counter()
        """Requests sent to each worker so far."""

    @classmethod
    def made(cls, params: Any, seed: int, known: Known) -> Router:
        """Return one that knows what the trace says of prompts and sessions."""
        return cls(params, seed=seed, content=known.content, block_size=known.block_size)

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return a worker and note that it gets the prompt."""
        self._evict(now_ns)
        prompt = self._prompts.cut(request)
        loads = [target.outstanding_requests for target in targets]
        if self._out_of_balance(loads):
            chosen = loads.index(min(loads))
        else:
            matched, worker = self._tree.match(prompt)
            if worker is not None and matched > self._params.cache_threshold * request.prompt_tokens:
                chosen = worker
            else:
                chosen = self._on_a_miss(loads)
        self._processed[chosen] += 1
        self._tree.insert(request.id, prompt, chosen)
        return chosen

    def _on_a_miss(self, loads: list[int]) -> int:
        if self._params.version == "2025":
            return min(range(len(loads)), key=lambda index: self._tree.sizes.get(index, 0))
        return min(range(len(loads)), key=lambda index: (loads[index], self._processed[index]))

    def _out_of_balance(self, loads: list[int]) -> bool:
        most, least = max(loads), min(loads)
        params = self._params
        return most - least > params.balance_abs_threshold and most > least * params.balance_rel_threshold

    def _evict(self, now_ns: int) -> None:
        """Make up for evictions that were due since the last request: in between nothing has changed."""
        if self._interval_ns and now_ns // self._interval_ns > self._evicted:
            self._evicted = now_ns // self._interval_ns
            self._tree.evict(self._most_tokens)
