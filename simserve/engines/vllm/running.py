"""The running list of vLLM, one request after the other: the steps in which order matters.

Used when a prompt is in progress, the budget binds, or blocks run out; costs O(running requests).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.core import Chunk, Request
from simserve.engines.vllm.waiting import priority_key

if TYPE_CHECKING:
    from simserve.engines.vllm.scheduler import VllmPolicy


class RunningWalk:
    """Gives each running request its tokens in order, preempting from the end when blocks run out."""

    def __init__(self, policy: VllmPolicy, lane: int) -> None:
        """Start from all running requests of `policy`; those of other lanes are in flight."""
        self.policy = policy
        self.lane = lane
        self.order = list(policy.run_list.values())
        self.budget = policy.budget
        self.position = 0
        self.given: dict[int, int] = {}
        """Tokens given in this step, by request id."""
        self.preempted: list[Request] = []

    def run(self) -> tuple[int, list[Chunk], list[Request], list[Request]]:
        """Return the budget left, the prompt chunks, the preempted and the stalled requests.

        Blocks are taken from the pool, preempted requests are back in the queue, and stalled ones are out of
        their group until the step is booked.
        """
        policy = self.policy
        while self.position < len(self.order) and self.budget > 0:
            request = self.order[self.position]
            tokens = self._wanted(request)
            if not tokens:
                self.position += 1
            elif self._make_room(request, tokens):
                self.given[request.id] = tokens
                self.budget -= tokens
                self.position += 1
            elif policy.params.scheduling_policy == "fcfs" or policy.params.version != "0.33":
                break
            elif self.order[self.position : self.position + 1] == [request]:
                self.position += 1  # every victim is in flight in another lane: it misses this step
        stalled = self._stall_the_rest()
        chunks = [
            policy.schedule_chunk(request, self.given[request.id])
            for request in self.order
            if request.id in self.given and not request.decoding
        ]
        return self.budget, chunks, self.preempted, stalled

    def _wanted(self, request: Request) -> int:
        """Return the tokens that the request can use now, within threshold and budget."""
        policy = self.policy
        if request.decoding:
            return 1 if policy.lane_of.get(request.id, 0) == self.lane else 0
        if request.id not in policy.partial:
            return 0  # its last chunk is in flight in another lane
        tokens = request.known - request.computed
        if tokens > 1 and policy.holds_prompts():
            return 0
        threshold = policy.prefill_threshold()
        if 0 < threshold < tokens:
            tokens = threshold
        return min(tokens, self.budget, policy.max_model_len - 1 - request.computed)

    def _make_room(self, request: Request, tokens: int) -> bool:
        """Take the blocks for `tokens` more, preempting others; False if the request itself had to go."""
        pool = self.policy.pool
        computed = self._computed(request)
        needed = pool.needed(request, computed, tokens)
        while needed > pool.free:
            victim = self._victim()
            if victim is None:
                return False
            self._evict(victim)
            if victim is request:
                return False
            pool = self.policy.pool  # the first preemption puts another in its place
        if request.decoding:
            pool.take(needed)
            if pool.quoted:
                pool.fill(request, self.policy.groups[self.lane].full_blocks(request))
        else:
            pool.extend(request, tokens)
        return True

    def _victim(self) -> Request | None:
        """Return whom vLLM preempts: the last in the list, or the lowest in priority.

        Requests in flight in another lane are spared (a simplification: vLLM takes their blocks too, and
        drops the token that arrives later); None if all others are.
        """
        order, policy = self.order, self.policy
        if len(policy.groups) > 1:
            order = [request for request in order if not policy.in_flight(request, self.lane)]
        if policy.params.scheduling_policy == "fcfs":
            return order[-1] if order else None
        return max(order, key=priority_key, default=None)

    def _evict(self, victim: Request) -> None:
        """Preempt `victim`; what this step had given it returns to budget and pool."""
        given = self.given.pop(victim.id, 0)
        self.budget += given
        index = self.order.index(victim)
        del self.order[index]
        if index < self.position:
            self.position -= 1
        self.policy.preempt(victim, given)
        self.preempted.append(victim)

    def _computed(self, request: Request) -> int:
        return self.policy.groups[self.lane].computed(request) if request.decoding else request.computed

    def _stall_the_rest(self) -> list[Request]:
        """Take decoding requests of this lane that got nothing out of their group for this step."""
        stalled = []
        for request in self.order:
            if (
                request.decoding
                and request.id not in self.given
                and self.policy.lane_of.get(request.id, 0) == self.lane
            ):
                self.policy.groups[self.lane].leave(request)
                stalled.append(request)
        return stalled
