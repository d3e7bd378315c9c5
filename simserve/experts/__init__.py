"""Expert load and placement: which experts tokens pick, on which GPUs these lie, and how uneven that is.

Pure arrays: no clock, no kernels. `popularity` says how often each expert is picked, `placement` and `eplb`
where copies of it lie, `rank_load` what that makes of a step's tokens.
"""

from simserve.experts.placement import (
    Placement,
    contiguous,
    imbalance,
    pick_shares,
    random_placement,
    sample_counts,
)

__all__ = ["Placement", "contiguous", "imbalance", "pick_shares", "random_placement", "sample_counts"]
