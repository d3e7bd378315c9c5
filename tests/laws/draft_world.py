"""Small worlds whose replicas speculate, and a scheduler's books kept again, token by token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simserve.core import Batch, Request, Result, Status, Wait
from simserve.core.batch import Drafting, VerifyBatch
from simserve.core.request import Acceptance
from simserve.engines.vllm import VllmParams
from simserve.engines.vllm.spec_decode import VllmDraftingPolicy
from simserve.sim import GroupSpec, ReplicaSpec
from tests.laws.checkers import LawBroken
from tests.laws.watch import WatchedPolicy
from tests.laws.world import World
from tests.sim.plain_lockstep import PlainLockstep


@dataclass(frozen=True)
class DraftWorld(World):
    """A world of vLLM whose replicas verify drafts; with `ranks`, they step together."""

    probabilities: tuple[float, ...] = (0.7, 0.5)
    lookahead: int = 2
    at_admission: bool = True
    rows: int = 0
    draw_seed: int = 0
    ranks: int = 0
    per_group: int = 7
    """Time of a group's step for each of its sequences, in ns."""

    @property
    def acceptance(self) -> Acceptance:
        return Acceptance(self.probabilities, self.draw_seed)

    def make_policy(self) -> Any:
        drafting = Drafting(self.acceptance, self.lookahead, False, self.at_admission, self.rows)
        made = VllmDraftingPolicy(
            VllmParams(**self.params),
            drafting=drafting,
            kv_blocks=self.kv_blocks,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
        )
        return RecountedDrafts(made, self.kv_blocks, self) if self.watched else made

    def specs(self) -> list[ReplicaSpec]:
        plain = [replace(spec, acceptance=self.acceptance) for spec in super().specs()]
        if not self.ranks:
            return plain
        result = []
        for start in range(0, len(plain), self.ranks):
            latency: Any = PlainLockstep(plain[0].latency, self.per_group)  # pyright: ignore[reportArgumentType]
            group = GroupSpec(f"group-{start}", "all", latency)
            result += [
                replace(spec, latency=latency, group=group) for spec in plain[start : start + self.ranks]
            ]
        return result


class RecountedDrafts(WatchedPolicy):
    """Keeps tokens, draws and blocks of every request one by one, and compares sums with the policy's."""

    def __init__(self, policy: Any, kv_blocks: int, world: DraftWorld) -> None:
        super().__init__(policy, kv_blocks)
        self.world = world
        self.lags = world.lags
        self.width = len(world.probabilities) + 1
        self.computed: dict[int, int] = {}
        self.ahead: dict[int, int] = {}
        """What the scheduler takes a request to have computed beyond that, when it plans the next step."""
        self.drawn: dict[int, int] = {}
        self.blocks: dict[int, int] = {}
        self.decoding: set[int] = set()
        self.moving: list[int] = []
        self.trimmed: dict[int, int] = {}
        self.ended: list[int] = []

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        batch = super().next_batch(now_ns, lane)
        if isinstance(batch, VerifyBatch):
            self._schedule(batch)
        return batch

    def update(self, batch: Batch, steps: int, finished: Iterable[Request], lane: int = 0) -> None:
        finished = list(finished)
        super().update(batch, steps, finished, lane)
        assert isinstance(batch, VerifyBatch)
        for request in batch.stalled:
            if request.id not in self.trimmed:
                self.ahead[request.id] = 0
        for number, given in self.trimmed.items():
            self._verify(number, given)
        for step in range(steps):
            for number in self.moving:
                if step:
                    self._take(number, self.width)
                self._verify(number, self.width)
        self.decoding |= {chunk.request.id for chunk in batch.chunks if chunk.last}
        gone = self.ended if self.lags else [request.id for request in finished]
        for number in gone:
            self._forget(number)
        self.ended = [request.id for request in finished]
        self._recount()

    def _schedule(self, batch: VerifyBatch) -> None:
        for request in batch.preempted:
            self._forget(request.id)
        ids = {request.id for request in batch.stalled}
        self.trimmed = {number: given for number, given in batch.trimmed.items() if number in self.decoding}
        gone = {request for request in self.ended if not self._goes_on(request)}
        self.moving = [number for number in self.decoding if number not in ids | gone]
        for number in self.moving:
            self._take(number, self.width)
        for number, given in self.trimmed.items():
            self._take(number, given)
        context = sum(self.computed[number] + self.width for number in self.moving)
        context += sum(self.computed[number] + given for number, given in self.trimmed.items())
        found = (batch.decodes, batch.decode_context)
        counted = (len(self.moving) + len(self.trimmed), context)
        if found != counted:
            raise LawBroken(f"(decodes, sum of contexts) = {found}, counted {counted}")
        for request in batch.admitted:
            self.computed[request.id], self.ahead[request.id], self.blocks[request.id] = 0, 0, 0
        rows = self.world.rows
        tokens = self.width * len(self.moving) + sum(self.trimmed.values()) + batch.prompt_tokens
        tokens += rows * (len(self.moving) + len(self.trimmed) + len(batch.chunks))
        if tokens > self.policy.params.max_num_batched_tokens:
            raise LawBroken(f"{tokens} tokens in a step")
        for chunk in batch.chunks:
            number = chunk.request.id
            first = any(request.id == number for request in batch.admitted)
            self._take(number, chunk.tokens, first and not self.world.at_admission)
            self.computed[number] += chunk.tokens
        self._recount()

    def _goes_on(self, number: int) -> bool:
        """Return True if a request that has ended is decoded once more, its end not being known yet."""
        request = self.policy.run_list.get(number)
        return request is not None and (request.decoding or number in self.trimmed)

    def _take(self, number: int, tokens: int, bare: bool = False) -> None:
        world = self.world
        slots = self.computed[number] + self.ahead[number] + tokens + (0 if bare else world.lookahead)
        if self.computed[number] + self.ahead[number] + tokens > world.max_model_len - (
            number in self.decoding
        ):
            raise LawBroken(f"request {number} beyond max_model_len")
        blocks = -(-min(slots, world.max_model_len) // world.block_size)
        self.blocks[number] = max(self.blocks[number], blocks)

    def _verify(self, number: int, given: int) -> None:
        drawn = self.drawn.get(number, 0)
        gain = min(int(self.world.acceptance.tokens(np.array([number]), np.array([drawn]))[0]), given)
        self.drawn[number] = drawn + 1
        self.computed[number] += gain
        self.ahead[number] = given - gain if self.lags else 0

    def _forget(self, number: int) -> None:
        for kept in (self.computed, self.ahead, self.blocks):
            kept.pop(number, None)
        self.decoding.discard(number)

    def _recount(self) -> None:
        if sum(self.blocks.values()) != self.kv_used_blocks:
            raise LawBroken(f"{self.kv_used_blocks} KV blocks used, counted {self.blocks}")


@st.composite
def draft_worlds(draw: st.DrawFn, params: dict[str, Any]) -> DraftWorld:
    """vLLM with `params` and drafts of all kinds, on one or several replicas or ranks."""
    probabilities = draw(st.lists(st.sampled_from([0.0, 0.3, 0.8, 1.0]), min_size=1, max_size=4))
    return DraftWorld(
        params=params,
        probabilities=tuple(probabilities),
        lookahead=draw(st.sampled_from([0, len(probabilities)])),
        at_admission=draw(st.booleans()),
        rows=0 if "version" in params else draw(st.sampled_from([0, 0, 1])),
        draw_seed=draw(st.integers(0, 3)),
        ranks=draw(st.sampled_from([0, 0, 1, 2])),
        replicas=draw(st.sampled_from([1, 1, 2, 3])),
        latency=draw(st.sampled_from([(1000, 10, 3, 1), (1000, 0, 0, 0)])),
        kv_blocks=15 + draw(st.sampled_from([0, 1, 5, 40])),
    )


def chunks_have_gaps(result: Result) -> None:
    """One gap per step after the first token of a request, adding up to last minus first token."""
    some = (result.status == Status.COMPLETED) & (result.output_tokens > 0)
    low, high = result.steady_window
    steady = some & (result.arrival_order >= low) & (result.arrival_order < high)
    assert result.verifications is not None
    for gaps, rows in ((result.gaps, some), (result.steady_gaps, steady)):
        sum_ns = int((result.last_token_ns - result.first_token_ns)[rows].sum())
        count = int(gaps.count.sum())
        steps = int(np.maximum(result.verifications, 0)[rows].sum())
        if gaps.sum_ns != sum_ns or not steps <= count <= steps + int(result.preemptions.sum()):
            raise LawBroken(f"{count} gaps of {gaps.sum_ns} ns, columns say {steps} and {sum_ns}")
