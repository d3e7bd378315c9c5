"""vLLM's decoding replicas of a prefill/decode split with speculative decoding; and what vLLM means by it.

Blocks for drafts are not held while KV is on its way; they are when the request is admitted, which must wait
if they are not free. A request is let in only if a verification's blocks are free beside its prompt (0.33.0:
`_spec_decode_step_blocks`). With a KV connector the last block of a prefix hit is always computed again.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from simserve.core import Chunk, Request
from simserve.core.acceptance import Acceptance
from simserve.core.verify import Drafting
from simserve.kv import blocks_for
from simserve.policy.drafting import DRAFTERS, DraftingEngine
from simserve.policy.vllm.drafting import VllmDraftingPolicy
from simserve.policy.vllm.params import VllmParams
from simserve.policy.vllm.split import VllmSplitPolicy


class VllmSplitDraftingPolicy(VllmDraftingPolicy, VllmSplitPolicy):
    """Either side of a split, speculating."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As for `VllmDraftingPolicy`."""
        super().__init__(*args, **kwargs)
        step = self.group.width + self.drafting.lookahead
        self._step_blocks = blocks_for(step, self._block_size)

    def _room(self, request: Request) -> int:
        """Return the free blocks that a waiting request may have."""
        room = super()._room(request)
        return room - self._step_blocks if self._apart(request) else room

    def _take_room(self, request: Request) -> bool:
        """Hold blocks for a whole prompt whose KV is to come, none for drafts; False if there is no room."""
        pool = self.pool
        usual, pool.admits_lookahead = pool.admits_lookahead, False
        taken = super()._take_room(request)
        pool.admits_lookahead = usual
        return taken

    def _admit_loaded(self, request: Request, chunks: list[Chunk]) -> bool:
        """Admit the head, whose prompt is here, if the slots for its drafts are free too."""
        more = self.pool.needed(request, request.computed, 1)
        if more > self.pool.free:
            return False
        self.pool.take(more)
        self.pool.blocks[request.id] += more
        return super()._admit_loaded(request, chunks)

    def _give_back_room(self, request: Request, hits: int) -> None:
        self.pool.release(request, hits * self._block_size)


def _drafting(params: BaseModel, method: str, acceptance: Acceptance, split: bool) -> Drafting:
    """Return what vLLM does with a method (`VllmConfig.num_lookahead_tokens`, `SpeculativeConfig`)."""
    assert isinstance(params, VllmParams)
    newest = params.version == "0.33"
    head = method in ("mtp", "eagle")
    return Drafting(
        acceptance,
        lookahead=acceptance.drafts if method != "ngram" else 0,
        drops_hit=head and (split or not newest),
        lookahead_at_admission=newest,
        rows=int(method == "draft_model"),
    )


def _settings(params: BaseModel, method: str) -> BaseModel:
    """Return the settings with which the engine starts: before 0.33, n-grams keep it from planning ahead."""
    assert isinstance(params, VllmParams)
    if method == "ngram" and params.version != "0.33":
        return params.model_copy(update={"async_scheduling": False})
    return params


DRAFTERS.register("vllm")(
    DraftingEngine(
        whole=VllmDraftingPolicy,
        decode=VllmSplitDraftingPolicy,
        drafting=_drafting,
        settings=_settings,
        source="vLLM 0.33.0's scheduler with speculative_config",
    )
)
