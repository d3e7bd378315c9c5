"""Expert-parallel load balancing as DeepSeek's EPLB does it (deepseek-ai/EPLB, 2025-03-24).

Replicate: give one more copy to the expert with the largest load per copy, again and again. Pack: heaviest
first, each to the lightest pack that has room, equally many per pack. Hierarchical, where expert groups
divide over nodes: groups to nodes, replicate within each node, pack to its GPUs; else global, as if there
were one group and one node. All layers at once: arrays have the layers as first axis.
"""

from __future__ import annotations

import numpy as np

from simserve.experts.picks import Float64
from simserve.experts.placement import Int64, Placement, check_slots


def eplb(load: Float64, ranks: int, redundant: int, groups: int = 1, nodes: int = 1) -> Placement:
    """Return a placement for `load` (picks per expert, float64[layers, experts]).

    Hierarchical if `groups` (of consecutive experts) divide over `nodes`, else global. Raises `ScenarioError`
    if slots do not divide over ranks.
    """
    layers, experts = load.shape
    check_slots(experts + redundant, experts, ranks)
    if groups % nodes or experts % groups or ranks % nodes or redundant % nodes:
        groups = nodes = 1
    # Groups to nodes: experts of each node, in the order of its groups.
    size = experts // groups
    by_group = load.reshape(layers, groups, size).sum(axis=2)
    node_groups = _pack(by_group, nodes)
    members = (node_groups[:, :, None] * size + np.arange(size)).reshape(layers * nodes, experts // nodes)
    rows = np.repeat(np.arange(layers), nodes)
    inside = load[rows[:, None], members]
    # Copies within each node, and copies to the node's GPUs.
    copy_of, copies = replicate(inside, redundant // nodes)
    row = np.arange(len(inside))[:, None]
    slot_load = (inside / copies)[row, copy_of]
    order = _pack(slot_load, ranks // nodes)
    local = copy_of[row, order]
    return Placement(members[row, local].reshape(layers, -1).astype(np.int64), experts, ranks)


def replicate(load: Float64, redundant: int) -> tuple[Int64, Int64]:
    """Return the expert of each copy, int64[n, experts + redundant], and the copies of each expert."""
    rows, experts = load.shape
    copies = np.ones((rows, experts), np.int64)
    extra = np.empty((rows, redundant), np.int64)
    row = np.arange(rows)
    for number in range(redundant):
        extra[:, number] = (load / copies).argmax(axis=1)
        copies[row, extra[:, number]] += 1
    return np.concatenate([np.tile(np.arange(experts), (rows, 1)), extra], axis=1), copies


def _pack(load: Float64, packs: int) -> Int64:
    """Return items pack by pack, int64[n, items]: heaviest first, to the lightest pack with room."""
    rows, items = load.shape
    room = items // packs
    if packs == 1 or room == 1:  # nothing to choose, or one item each: order does not matter
        return np.tile(np.arange(items), (rows, 1))
    row = np.arange(rows)
    order = np.argsort(-load, axis=1, kind="stable")
    held, filled = np.zeros((rows, packs)), np.zeros((rows, packs), np.int64)
    packed = np.empty((rows, packs, room), np.int64)
    for number in range(items):
        item = order[:, number]
        pack = np.where(filled < room, held, np.inf).argmin(axis=1)
        packed[row, pack, filled[row, pack]] = item
        held[row, pack] += load[row, item]
        filled[row, pack] += 1
    return packed.reshape(rows, items)
