"""Schedulers that plan a step while the one before runs: what they see of arrivals is one step old.

With asynchronous scheduling (vLLM), or the overlapped loop (SGLang), the decision for step t + 1 is made when
step t begins. The replica still asks for it when step t ends, which saves it from undoing anything, and keeps
back the arrivals that the engine could not have seen: those of step t are added after that decision.
"""

from __future__ import annotations

from simserve.core import Request
from simserve.policy.base import Policy


class Lookahead:
    """Arrivals of the steps in progress, held until the policy may see them."""

    __slots__ = ("_held", "stepping", "unseen")

    def __init__(self) -> None:
        self._held: list[tuple[Request, int]] = []
        """Arrived requests, with the step of the present run in which each came."""
        self.stepping = False
        """True from a decision to compute until the next decision."""
        self.unseen = False
        """True if arrivals were let in after the last decision: it holds for one step only."""

    @property
    def held(self) -> int:
        """Arrivals that the policy has not been told of."""
        return len(self._held)

    def hold(self, request: Request, step: int) -> None:
        """Keep an arrival that came in the `step`-th step of the present run."""
        self._held.append((request, step))

    def steps_run(self, policy: Policy, steps: int) -> None:
        """A run of `steps` steps ended: who came before its last step is seen by the next decision."""
        if not self._held:
            return
        for request, step in self._held:
            if step < steps:
                policy.add(request)
        self._held = [(request, step) for request, step in self._held if step >= steps]

    def decided(self, policy: Policy, computes: bool) -> bool:
        """A decision was made: let the held arrivals in. Return True if it must be made again at once."""
        self.stepping = computes
        self.unseen = bool(self._held)
        if not self._held:
            return False
        for request, _ in self._held:
            policy.add(request)
        self._held = []
        return not computes
