"""Pareto fronts and the volume that they beat, for any number of aims; less is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Cost = tuple[float, ...]


def unbeaten_rows(costs: Mapping[int, Cost]) -> list[int]:
    """Return the indices of the rows that no other row beats (equal ones: the first)."""
    front = []
    for index, cost in costs.items():
        beaten = any(
            all(a <= b for a, b in zip(other, cost, strict=True)) and (other != cost or rival < index)
            for rival, other in costs.items()
            if rival != index
        )
        if not beaten:
            front.append(index)
    return front


def hypervolume(front: Sequence[Cost]) -> float:
    """Return the volume of the unit cube that lies above at least one of the points.

    Slices along the last aim (Knowles 2002); exact, and fast enough for the fronts of a few hundred trials.
    """
    inside = [cost for cost in front if all(c < 1 for c in cost)]
    if not inside:
        return 0.0
    if len(inside[0]) == 1:
        return 1 - min(cost[0] for cost in inside)
    ordered = sorted(inside, key=lambda cost: cost[-1])
    volume = 0.0
    for i, cost in enumerate(ordered):
        depth = (ordered[i + 1][-1] if i + 1 < len(ordered) else 1.0) - cost[-1]
        if depth > 0:
            slice_ = {j: one[:-1] for j, one in enumerate(ordered[: i + 1])}
            volume += depth * hypervolume([slice_[j] for j in unbeaten_rows(slice_)])
    return volume
