"""Which ranks step together, and groups of them whose ranks verify drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.core.verify import VerifyBatch
from simserve.engine.boundary import Clock, Front
from simserve.engine.gaps import GapRecorder
from simserve.engine.lockstep import LockstepGroup
from simserve.engine.rank import Rank
from simserve.engine.replica import Replica
from simserve.engine.spec import GroupSpec

Int64 = NDArray[np.int64]


class DraftGroup(LockstepGroup):
    """A group whose ranks verify drafts: contexts grow by what is accepted."""

    def _contexts(self, places: Int64, steps: int) -> Int64:
        rows = []
        for rank in (self.ranks[place] for place in places.tolist()):
            batch, over = rank.batch, self.step - rank.start_step
            assert isinstance(batch, VerifyBatch)
            rows.append(batch.context_sums[over : over + steps] // batch.decodes)
        return np.array(rows, np.int64).reshape(len(rows), steps)


def build_groups(
    env: Clock, front: Front, replicas: Sequence[Replica], gaps: GapRecorder
) -> list[LockstepGroup]:
    """Return the groups that the replicas form."""
    members: dict[GroupSpec, list[Rank]] = {}
    for replica in replicas:
        if isinstance(replica, Rank) and replica.spec.group is not None:
            members.setdefault(replica.spec.group, []).append(replica)
    return [
        (LockstepGroup if ranks[0].spec.acceptance is None else DraftGroup)(
            env, front, spec, ranks[0].rank, ranks, gaps
        )
        for spec, ranks in members.items()
    ]
