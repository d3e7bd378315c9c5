"""What to measure, most valuable first.

Level by level: the corners of every grid, then what halves its cells, so that a plan cut short leaves usable
grids. Within a level, what no shipped table of this GPU has comes first (cached prefixes, mixed and unequal
batches, experts by counts, norms), then what dominates a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from simserve.latency.profiles import ProfileStore
from simserve.profiler.case import Case, Table
from simserve.profiler.device import Device
from simserve.profiler.shapes import Shapes


def plan(ops: Sequence[Table], shapes: Shapes, device: Device, gpu: str) -> list[Case]:
    """Return all cases of `ops` in the order in which they are to be measured, each once."""
    shipped = set(ProfileStore().ops(gpu))
    cases: dict[str, Case] = {}
    place: dict[str, tuple[int, bool, int]] = {}
    for order, op in enumerate(ops):
        for case in op.cases(shapes, device):
            if case.id not in cases:
                cases[case.id] = case
                place[case.id] = (case.level, op.name in shipped and not _unseen(case), order)
    return sorted(cases.values(), key=lambda case: place[case.id])


def _unseen(case: Case) -> bool:
    """True for rows that no shipped table has: prompts on a cached prefix."""
    return dict(case.key).get("prefix_len", 0) > 0
