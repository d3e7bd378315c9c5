"""How many routed experts a step touches."""

from __future__ import annotations

from simserve.model.parts import routed_share
from simserve.model.spec import MoeFfn


def touched_experts(moe: MoeFfn, tokens: float) -> float:
    """Return the expected number of different experts that `tokens` tokens pick, E(1 - (1 - k/E)^B).

    Uniform, independent routing; slots of zero-cost experts take their share of the picks.
    """
    return moe.n_routed_experts * (1 - (1 - routed_share(moe)) ** tokens)
