"""NVIDIA Dynamo's KV router: the least of prompt blocks to compute plus blocks in flight, or a softmax of it.

Follows the selector of Dynamo 1.4 (kv-router/src/scheduling/selector, sources of 2026):

    cost = prefill_load_scale * max(0, (active prefill + prompt tokens) / block - credit)
           + blocks in flight with this request + decode_active_request_weight * requests in flight
    credit = overlap_score_credit * decay * blocks cached in HBM + host_cache_hit_weight * in host memory
             + disk_cache_hit_weight * on drives + shared_cache_multiplier * in a shared store

decay = 1 / (1 + overlap_score_credit_decay * excess / blocks of the prompt), the excess being the prompt
blocks in flight beyond those of the worker that has fewest. (Before 1.2 the scale was called
overlap_score_weight.) With KV events the cached blocks are what the engine has now; without, blocks that were
sent to a worker within the last `router_ttl_secs`. Temperature above 0: probabilities exp(-cost / (spread *
temperature)), spread being max - min. Blocks in flight are those of prompts; a shared one counts once. Ties
are drawn. The queue in front of it all is in `dynamo_queue`. Left out: several routers, output blocks (off by
default), prompts in flight that wear off with time (router_prefill_load_model, none by default).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from simserve.core import Request
from simserve.kvcache import Content
from simserve.router.base import (
    ROUTERS,
    HoldingRouter,
    Known,
    Prompt,
    PromptBlocks,
    Router,
    RouterParams,
    Target,
)
from simserve.router.dynamo_state import Active, AssumedCache, QueuePolicy, RouterQueue, Sent
from simserve.units import seconds_to_ns

QUEUE_THRESHOLDS = {"1.4": None, "1.3": 16.0, "1.0": 4.0}
"""Default of router_queue_threshold by release (KvRouterConfig in kv-router/src/scheduling/config.rs)."""


class DynamoParams(RouterParams):
    """Settings under Dynamo's own names."""

    overlap_score_credit: float = Field(
        default=1.0,
        ge=0,
        allow_inf_nan=False,
        description="Credit for a block cached in HBM; 0 ignores the caches.",
    )
    overlap_score_credit_decay: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="How fast that credit falls with the prompt tokens in flight; 0: never.",
    )
    host_cache_hit_weight: float = Field(
        default=0.75, ge=0, allow_inf_nan=False, description="Credit for a block in host memory (tier cpu)."
    )
    disk_cache_hit_weight: float = Field(
        default=0.25, ge=0, allow_inf_nan=False, description="Credit for a block on drives (tier ssd)."
    )
    shared_cache_multiplier: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Credit for a block in a store (tier remote)."
    )
    decode_active_request_weight: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Cost of each request in flight, in blocks."
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
    version: Literal["1.4", "1.3", "1.0"] = Field(
        default="1.4", description="Release whose router_queue_threshold is the default: none, 16 and 4."
    )
    router_queue_threshold: float | Literal["default"] | None = Field(
        default="default",
        description="Requests wait at the router while every worker has more prompt tokens in flight than "
        "this many times its max_num_batched_tokens; null: they never do; default: as the version has it.",
    )
    router_queue_policy: QueuePolicy = Field(
        default="fcfs",
        description="Which waiting request goes first: the oldest, the newest, or by weighted shortest "
        "processing time, (1 + priority) / prompt tokens not cached anywhere.",
    )

    @field_validator("router_queue_threshold")
    @classmethod
    def _not_negative(cls, threshold: float | str | None) -> float | str | None:
        if isinstance(threshold, float) and not 0 <= threshold < math.inf:
            raise ValueError(f"found {threshold:g}, allowed: a number of 0 or more, null, or default")
        return threshold

    @property
    def queue_threshold(self) -> float | None:
        """The threshold that is in force; None: no queue."""
        if isinstance(self.router_queue_threshold, str):
            return QUEUE_THRESHOLDS[self.version]
        return self.router_queue_threshold


@ROUTERS.register("dynamo_kv")
class DynamoKvRouter(HoldingRouter):
    """Least prompt work plus decode load."""

    Params = DynamoParams
    hears_first_tokens = True
    hears_ends = True

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
        self._below = {
            "cpu": params.host_cache_hit_weight,
            "ssd": params.disk_cache_hit_weight,
            "remote": params.shared_cache_multiplier,
        }
        """Credit for a token by kind of KV tier."""
        self._queue = RouterQueue(params.queue_threshold, params.router_queue_policy)

    @property
    def may_hold(self) -> bool:
        """Whether requests may have to wait here."""
        return self._params.queue_threshold is not None

    @classmethod
    def made(cls, params: Any, seed: int, known: Known) -> Router:
        """Return one that knows what the trace says of prompts and sessions."""
        return cls(params, seed=seed, content=known.content, block_size=known.block_size)

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int | None:
        """Return the worker with the least cost, or one drawn by cost; None while all are busy."""
        self._expect(targets)
        if self._queue.holds(self._active, targets):
            cached = self._cached_tokens(request, self._prompts.cut(request), targets, now_ns)
            self._queue.put(request, max(cached), now_ns)
            return None
        return self._send(request, targets, now_ns)

    def release(self, targets: Sequence[Target], now_ns: int) -> tuple[Request, int] | None:
        """Return the held request that goes on, and where, unless all workers are busy."""
        request = self._queue.pop(self._active, targets)
        return None if request is None else (request, self._send(request, targets, now_ns))

    def withdraw(self, request: Request) -> None:
        """Forget a held request."""
        self._queue.withdraw(request)

    def _send(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        prompt = self._prompts.cut(request)
        cached = self._cached_tokens(request, prompt, targets, now_ns)
        floor = min(active.prefill_tokens for active in self._active)
        costs = []
        for active, tokens, target in zip(self._active, cached, targets, strict=True):
            credit = self._credit(request, target, tokens, active.prefill_tokens - floor, now_ns)
            costs.append(self._cost(request, prompt, active, credit, target))
        chosen = self._draw(costs)
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

    def _credit(
        self, request: Request, target: Target, cached_tokens: int, excess_tokens: int, now_ns: int
    ) -> float:
        """Return the tokens taken off a worker's prompt work for what it has cached.

        `excess_tokens` are its prompt tokens in flight beyond those of the worker that has fewest.
        """
        params = self._params
        credit = params.overlap_score_credit * cached_tokens
        if params.overlap_score_credit_decay and credit:
            prompt_blocks = -(-request.prompt_tokens // target.block_size)
            excess_blocks = excess_tokens / target.block_size
            credit /= 1 + params.overlap_score_credit_decay * excess_blocks / prompt_blocks
        if params.use_kv_events:
            below = target.cached_below(request, now_ns)
            credit += sum(self._below[kind] * tokens for kind, tokens in below.items())
        return credit

    def _cost(
        self, request: Request, prompt: Prompt, active: Active, credit_tokens: float, target: Target
    ) -> float:
        params = self._params
        prefill_tokens = max(0.0, active.prefill_tokens + request.prompt_tokens - credit_tokens)
        in_flight = active.blocks_with(prompt) if params.router_track_active_blocks else 0
        in_flight += params.decode_active_request_weight * active.requests
        return params.prefill_load_scale * prefill_tokens / target.block_size + in_flight

    def _draw(self, costs: list[float]) -> int:
        least, spread = min(costs), max(costs) - min(costs)
        temperature = self._params.router_temperature
        if not temperature or not spread:
            best = [index for index, cost in enumerate(costs) if cost == least]
            return best[0] if len(best) == 1 else self._random.choice(best)
        weights = [math.exp((least - cost) / (spread * temperature)) for cost in costs]
        return self._random.choices(range(len(costs)), weights)[0]
