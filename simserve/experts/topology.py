"""Placement that knows nodes: copies of an expert lie on different nodes, and tokens go to the nearest.

Copies are given as EPLB does. An expert's copies then go to nodes that hold none of it yet, the lightest
first, and within a node to the lightest GPU with room. Tokens take a copy on their own node where there is
one, as SGLang's static dispatch chooses among copies, so that fewer of them cross the network.
"""

from __future__ import annotations

import numpy as np

from simserve.errors import ScenarioError
from simserve.experts.eplb import eplb, replicate
from simserve.experts.picks import Float64
from simserve.experts.placement import Int64, Placement, check_slots


def balanced(load: Float64, ranks: int, redundant: int, groups: int, nodes: int, near: bool) -> Placement:
    """Return a placement for `load` (picks per expert, float64[layers, experts]): topology-aware if `near`
    (which knows no expert groups), else EPLB's."""
    if near:
        return topology_aware(load, ranks, redundant, nodes)
    return eplb(load, ranks, redundant, groups, nodes)


def topology_aware(load: Float64, ranks: int, redundant: int, nodes: int) -> Placement:
    """Return a placement for `load` (picks per expert, float64[layers, experts]) over `nodes` equal nodes.

    Raises `ScenarioError` if slots do not divide over ranks, or ranks over nodes.
    """
    layers, experts = load.shape
    check_slots(experts + redundant, experts, ranks)
    if ranks % nodes:
        raise ScenarioError(f"{ranks} ranks do not spread evenly over {nodes} nodes")
    _, copies = replicate(load, redundant)
    slots = np.empty((layers, ranks, (experts + redundant) // ranks), np.int64)
    for layer in range(layers):
        slots[layer] = _layer(load[layer] / copies[layer], copies[layer], ranks, nodes)
    return Placement(slots.reshape(layers, -1), experts, ranks, nodes)


def _layer(each: Float64, copies: Int64, ranks: int, nodes: int) -> Int64:
    """Return the experts of each rank, int64[ranks, slots]; `each` is the load of one copy."""
    inside, room = ranks // nodes, int(copies.sum()) // ranks
    held, filled = np.zeros(ranks), np.zeros(ranks, np.int64)
    slots = np.empty((ranks, room), np.int64)
    for expert in np.argsort(-each, kind="stable").tolist():
        here = np.zeros(nodes, np.int64)
        for _ in range(int(copies[expert])):
            node = _first(
                here, held.reshape(nodes, inside).sum(1), filled.reshape(nodes, inside).min(1) < room
            )
            ranks_of = slice(node * inside, (node + 1) * inside)
            rank = node * inside + int(np.where(filled[ranks_of] < room, held[ranks_of], np.inf).argmin())
            slots[rank, filled[rank]] = expert
            filled[rank] += 1
            held[rank] += each[expert]
            here[node] += 1
    return slots


def _first(here: Int64, held: Float64, roomy: np.ndarray) -> int:
    """Return the node with room that has fewest copies, of these the lightest."""
    fewest = here[roomy].min()
    return int(np.where(roomy & (here == fewest), held, np.inf).argmin())
