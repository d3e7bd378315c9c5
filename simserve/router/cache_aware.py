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
from typing import Literal

from pydantic import Field

from simserve.core import Request
from simserve.kv import Content
from simserve.router.base import ROUTERS, StateParams, Target
from simserve.router.prefix_tree import PrefixTree
from simserve.router.prompt_blocks import PromptBlocks
from simserve.units import seconds_to_ns


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
class CacheAwareRouter:
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
