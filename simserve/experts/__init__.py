"""Expert load and placement: which experts tokens pick, on which GPUs these lie, and how uneven that is.

Pure arrays: no clock, no kernels. `popularity` says how often each expert is picked, `placement` and `eplb`
where copies of it lie, `rank_load` what that makes of a step's tokens.
"""

from simserve.experts.picks import pick_shares, sample_counts
from simserve.experts.placement import Placement, contiguous, imbalance, random_placement

__all__ = ["Placement", "contiguous", "imbalance", "pick_shares", "random_placement", "sample_counts"]
