"""Long prompts on replicas of their own, so that short ones do not wait behind them.

The last `long_replicas` replicas take prompts of at least `threshold_tokens`, the others the rest; inside a
group the fewest outstanding requests decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from simserve.core import Request
from simserve.errors import ScenarioError
from simserve.router.base import ROUTERS, StateParams, Target
from simserve.router.ties import Rotation


class LengthThresholdParams(StateParams):
    """Settings of the split."""

    threshold_tokens: int = Field(
        default=8192, ge=1, description="Prompt tokens from which on a request counts as long."
    )
    long_replicas: int = Field(
        default=1, ge=1, description="Replicas, counted from the last, for long prompts."
    )


@ROUTERS.register("length_threshold")
class LengthThresholdRouter:
    """Least outstanding requests among the replicas for this length."""

    Params = LengthThresholdParams

    def __init__(self, params: LengthThresholdParams, *, seed: int) -> None:
        """Nothing is random."""
        self.refresh_ns = params.refresh_ns
        self._params = params
        self._short, self._long = Rotation(), Rotation()

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return a replica of the group; raises ScenarioError if no replica is left for short prompts."""
        first_long = len(targets) - self._params.long_replicas
        if first_long < 1:
            raise ScenarioError(
                f"router length_threshold: long_replicas = {self._params.long_replicas} of {len(targets)} "
                f"replicas, allowed is 1 to {len(targets) - 1}: at least one must take short prompts"
            )
        loads = [target.outstanding_requests for target in targets]
        if request.prompt_tokens < self._params.threshold_tokens:
            return self._short.smallest(loads[:first_long])
        return first_long + self._long.smallest(loads[first_long:])
