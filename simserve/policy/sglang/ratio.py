"""SGLang's new-token ratio: the share of the allowed output that an admission expects of running requests."""

from __future__ import annotations

from simserve.policy.sglang.params import (
    DECAY_STEPS,
    INIT_RATIO,
    MIN_RATIO_FACTOR,
    RETRACT_DECODE_STEPS,
)


class NewTokenRatio:
    """Starts high, decays with every decode step, and is set anew by a retraction."""

    def __init__(self, conservativeness: float) -> None:
        self.initial = min(1.0, INIT_RATIO * conservativeness)
        self._floor = self.initial * MIN_RATIO_FACTOR
        self._decay = (self.initial - self._floor) / DECAY_STEPS
        self.value = self.initial
        """The ratio now."""

    def decay(self, steps: int) -> None:
        """Book decode steps that had enough memory (one subtraction each: the sum rounds as the engine's)."""
        for _ in range(steps):
            if self.value == self._floor:
                return
            self.value = max(self.value - self._decay, self._floor)

    def reset_after_retraction(self, outputs: int, max_new_tokens: int, remaining: int) -> None:
        """Set the ratio from the totals over the `remaining` requests that keep running."""
        estimate = (outputs + RETRACT_DECODE_STEPS * remaining) / (max_new_tokens + 1)
        self.value = min(1.0, estimate)

    def reset(self) -> None:
        """Start over, as the engine does whenever it is idle."""
        self.value = self.initial
