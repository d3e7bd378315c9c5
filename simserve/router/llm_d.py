"""llm-d's inference scheduler: a weighted sum of scores between 0 and 1, the highest wins, ties are drawn.

Follows llm-d's router and the Gateway API inference extension under it (sources of 2026; formulas in
`llm_d_scorers`). Engine metrics are as of the last scrape, every 50 ms by default; the prefix index and the
router's own counts are up to date. The default weights are those of llm-d's chart (approximate prefix cache
3, queue 2, KV use 2); in 2025 the guide to precise prefix routing had the precise scorer in the first place,
whose scores then ran from the shortest to the longest prefix. Left out: filters but that by context length,
latency prediction, profiles for PD.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simserve.core import Request
from simserve.errors import ScenarioError
from simserve.kvcache import Content
from simserve.router.base import ROUTERS, Known, PromptBlocks, Router, StateParams, Target
from simserve.router.llm_d_scorers import ApproximateIndex, Memory, Situation, scorers

ScorerName = Literal[
    "active-request-scorer",
    "context-length-aware",
    "kv-cache-utilization-scorer",
    "load-aware-scorer",
    "no-hit-lru-scorer",
    "precise-prefix-cache-scorer",
    "prefix-cache-scorer",
    "queue-scorer",
    "running-requests-size-scorer",
    "session-affinity-scorer",
]
CONTEXT_LENGTH: ScorerName = "context-length-aware"
APPROXIMATE: ScorerName = "prefix-cache-scorer"
TokenRange = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


DEFAULT_SCORERS: dict[str, dict[ScorerName, float]] = {
    "2026": {"prefix-cache-scorer": 3, "queue-scorer": 2, "kv-cache-utilization-scorer": 2},
    "2025": {"precise-prefix-cache-scorer": 3, "queue-scorer": 2, "kv-cache-utilization-scorer": 2},
}


class LlmDParams(StateParams):
    """Scorers by llm-d's own names, with their weights."""

    version: Literal["2026", "2025"] = Field(
        default="2026", description="Year of the source whose default scorers and formulas are followed."
    )
    scorers: Annotated[dict[ScorerName, Weight], Field(min_length=1)] | None = Field(
        default=None,
        description="Weight of each scorer that takes part; default: prefix-cache-scorer 3 (2025: "
        "precise-prefix-cache-scorer), queue-scorer 2, kv-cache-utilization-scorer 2.",
    )
    lru_capacity_per_server: int | None = Field(
        default=None,
        ge=1,
        description="For prefix-cache-scorer: blocks of 64 tokens remembered per replica; "
        "default: as many as its KV cache has blocks (autoTune).",
    )
    refresh_ms: float = Field(
        default=50.0,
        ge=0,
        le=3_600_000,
        allow_inf_nan=False,
        description="Interval between scrapes of the engines' metrics.",
    )
    threshold: int = Field(
        default=128, ge=1, description="Waiting requests at which load-aware-scorer gives 0."
    )
    context_length_ranges: list[TokenRange | None] | None = Field(
        default=None,
        description="For context-length-aware: [least, most] prompt tokens that each replica is meant for, "
        "in order; null: any.",
    )
    context_length_filtering: bool = Field(
        default=False, description="Send no request to a replica whose range does not hold it."
    )

    @property
    def weights(self) -> dict[ScorerName, float]:
        """The scorers that take part."""
        return self.scorers or DEFAULT_SCORERS[self.version]

    @model_validator(mode="after")
    def _ranges_where_needed(self) -> LlmDParams:
        wanted = CONTEXT_LENGTH in self.weights or self.context_length_filtering
        if wanted != (self.context_length_ranges is not None):
            raise ValueError(
                f"context_length_ranges goes with the scorer {CONTEXT_LENGTH} or context_length_filtering, "
                "and they with it"
            )
        for least, most in filter(None, self.context_length_ranges or ()):
            if least > most:
                raise ValueError(f"context_length_ranges: found [{least}, {most}], allowed: least <= most")
        return self


@ROUTERS.register("llm_d")
class LlmDRouter(Router):
    """Highest weighted sum of scores."""

    Params = LlmDParams
    hears_ends = True

    def __init__(
        self,
        params: LlmDParams,
        *,
        seed: int,
        sessions: Sequence[int] | None = None,
        content: Content | None = None,
        block_size: int = 16,
    ) -> None:
        """`seed` fixes draws between equals.

        Without `sessions` session affinity does nothing, without `content` no prompts match.
        """
        self.refresh_ns = params.refresh_ns
        self._weights = params.weights
        prompts = PromptBlocks(content, block_size)
        approximate = ApproximateIndex(prompts, params.lru_capacity_per_server)
        self._memory = Memory(sessions, approximate, older=params.version == "2025")
        self._approximates = APPROXIMATE in self._weights
        self._ranges = params.context_length_ranges
        self._filtering = params.context_length_filtering
        self._scorers = scorers(self._memory, params.threshold, self._ranges or ())
        self._random = random.Random(seed)
        self.assumptions: tuple[str, ...] = prompts.assumptions if self._approximates else ()
        if sessions is None and self._weights.get("session-affinity-scorer"):
            self.assumptions += ("the trace has no sessions: session-affinity-scorer has no effect",)

    @classmethod
    def made(cls, params: Any, seed: int, known: Known) -> Router:
        """Return one that knows what the trace says of prompts and sessions."""
        return cls(
            params, seed=seed, content=known.content, block_size=known.block_size, sessions=known.sessions
        )

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the target with the highest sum; raises `ScenarioError` if none may take the request."""
        if self._ranges is not None and len(self._ranges) != len(targets):
            raise ScenarioError(
                f"router llm_d: context_length_ranges has {len(self._ranges)} entries, allowed: one for "
                f"each of the {len(targets)} replicas"
            )
        situation = Situation(request, targets, now_ns)
        self._memory.in_flight.expect(len(targets))
        totals = [0.0] * len(targets)
        for name, weight in self._weights.items():
            scores = self._scorers[name](situation)
            totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
        if self._filtering:
            totals = self._in_range(request, totals)
        most = max(totals)
        best = [index for index, total in enumerate(totals) if total == most]
        chosen = best[0] if len(best) == 1 else self._random.choice(best)
        self._memory.note(situation, chosen, cold="no-hit-lru-scorer" in self._weights)
        if self._approximates:
            self._memory.approximate.sent(situation, chosen)
        return chosen

    def _in_range(self, request: Request, totals: list[float]) -> list[float]:
        """Leave only replicas whose range holds the prompt."""
        tokens = request.prompt_tokens
        holds = [found is None or found[0] <= tokens <= found[1] for found in self._ranges or ()]
        if not any(holds):
            raise ScenarioError(
                f"router llm_d: no replica's context_length_ranges hold the {tokens:,} prompt tokens of row "
                f"{request.id}"
            )
        return [total if held else -math.inf for total, held in zip(totals, holds, strict=True)]

    def ended(self, request: Request, now_ns: int) -> None:
        """A request came back."""
        self._memory.in_flight.ended(request)
