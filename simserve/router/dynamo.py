"""NVIDIA Dynamo's KV router: the least of prompt blocks to compute plus blocks in flight, or a softmax of it.

Follows Dynamo 1.2's selector: cost = prefill_load_scale * max(0, (active prefill + prompt tokens) / block -
overlap_score_credit * cached blocks) + blocks in flight with this request. (Before 1.2 the scale was called
overlap_score_weight.) With KV events the cached blocks are what the engine has now; without, blocks that were
sent to a worker within the last `router_ttl_secs`. Temperature above 0: probabilities exp(-cost / (spread *
temperature)), spread being max - min. Blocks in flight are those of prompts; a shared one counts once.
Left out: lower cache tiers, several routers, output blocks (off by default), the router's own queue (off by
default). Ties are drawn: the original takes whichever worker its hash map lists first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from pydantic import Field

from simserve.core import Request
from simserve.kv import Content
from simserve.router.base import ROUTERS, RouterParams, Target
from simserve.router.dynamo_state import Active, AssumedCache, Sent
from simserve.router.prompt_blocks import Prompt, PromptBlocks
from simserve.units import seconds_to_ns


class DynamoParams(RouterParams):
    """Settings under Dynamo's own names."""

    overlap_score_credit: float = Field(
        default=1.0, ge=0, le=1, description="How much of a cached block is credited; 0 ignores the caches."
    )
    prefill_load_scale: float = Field(
        default=1.0, ge=0, description="Weight of prompt blocks against blocks in flight."
    )
    router_temperature: float = Field(
        default=0.0,
        ge=0,
        description="0: the least cost; above: drawn by softmax, more evenly the higher.",
    )
    use_kv_events: bool = Field(
        default=True, description="Know what each engine has cached; else assume what was sent to it."
    )
    router_ttl_secs: float = Field(
        default=120.0, gt=0, le=1e9, description="How long blocks are assumed cached without KV events."
    )
    router_track_active_blocks: bool = Field(
        default=True, description="Count blocks in flight; off: only prompt blocks decide."
    )


@ROUTERS.register("dynamo_kv")
class DynamoKvRouter:
    """Least prompt work plus decode load."""

    Params = DynamoParams

    def __init__(
        self, params: DynamoParams, *, seed: int, content: Content | None = None, block_size: int = 16
    ) -> None:
        """`seed` fixes draws; without `content` no blocks are shared, and load alone decides."""
        self._params = params
        self._random = random.Random(seed)
        self._prompts = PromptBlocks(content, block_size)
        self.assumptions = self._prompts.assumptions
        self._active: list[Active] = []
        self._sent: dict[int, Sent] = {}
        self._assumed: list[AssumedCache] = []

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the worker with the least cost, or one drawn by cost."""
        self._expect(targets)
        prompt = self._prompts.cut(request)
        cached = self._cached_tokens(request, prompt, targets, now_ns)
        chosen = self._draw(
            [
                self._cost(request, prompt, active, tokens, target.block_size)
                for active, tokens, target in zip(self._active, cached, targets, strict=True)
            ]
        )
        new_tokens = max(0, request.prompt_tokens - cached[chosen])
        self._sent[request.id] = sent = Sent(chosen, prompt, new_tokens)
        self._active[chosen].add(sent)
        if not self._params.use_kv_events:
            self._assumed[chosen].store(prompt, now_ns)
        return chosen

    def first_token(self, request: Request, now_ns: int) -> None:
        """A prompt is computed."""
        sent = self._sent[request.id]
        self._active[sent.worker].computed(sent)

    def ended(self, request: Request, now_ns: int) -> None:
        """A request came back."""
        sent = self._sent.pop(request.id)
        self._active[sent.worker].remove(sent)

    def _expect(self, targets: Sequence[Target]) -> None:
        ttl_ns = seconds_to_ns(self._params.router_ttl_secs)
        for target in targets[len(self._active) :]:
            self._active.append(Active(target.block_size, self._prompts.block_size))
            self._assumed.append(AssumedCache(ttl_ns))

    def _cached_tokens(
        self, request: Request, prompt: Prompt, targets: Sequence[Target], now_ns: int
    ) -> list[int]:
        """Return the tokens of the prompt that each worker has, known or assumed."""
        if self._params.use_kv_events:
            return [target.cached_tokens(request, now_ns) for target in targets]
        return [assumed.overlap(prompt, now_ns) * self._prompts.block_size for assumed in self._assumed]

    def _cost(
        self, request: Request, prompt: Prompt, active: Active, cached_tokens: int, block_size: int
    ) -> float:
        credit = self._params.overlap_score_credit * cached_tokens
        prefill_tokens = max(0.0, active.prefill_tokens + request.prompt_tokens - credit)
        in_flight = active.blocks_with(prompt) if self._params.router_track_active_blocks else 0
        return self._params.prefill_load_scale * prefill_tokens / block_size + in_flight

    def _draw(self, costs: list[float]) -> int:
        least, spread = min(costs), max(costs) - min(costs)
        temperature = self._params.router_temperature
        if not temperature or not spread:
            best = [index for index, cost in enumerate(costs) if cost == least]
            return best[0] if len(best) == 1 else self._random.choice(best)
        weights = [math.exp((least - cost) / (spread * temperature)) for cost in costs]
        return self._random.choices(range(len(costs)), weights)[0]
