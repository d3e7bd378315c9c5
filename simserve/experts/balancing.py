"""What may be done to one batch: spread picks anew over existing copies, or cap what an expert takes.

Spreading finds, per layer, shares of each expert's picks over its copies that make the busiest rank as light
as possible, as LPLB (DeepSeek, November 2025) solves with a linear programme. Here by water-filling: expert
after expert is poured over the ranks that hold it until their levels meet. That descends to the least sum of
squared loads, whose largest is the smallest possible too.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from simserve.errors import ScenarioError
from simserve.experts.placement import Float64, Int64, Placement, check_slots

# Expert-parallel load balancing as DeepSeek's EPLB does it (deepseek-ai/EPLB, 2025-03-24).
#
# Replicate: give one more copy to the expert with the largest load per copy, again and again. Pack: heaviest
# first, each to the lightest pack that has room, equally many per pack. Hierarchical, where expert groups
# divide over nodes: groups to nodes, replicate within each node, pack to its GPUs; else global, as if there
# were one group and one node. All layers at once: arrays have the layers as first axis.


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


_SWEEPS = 24


def water_filled(placement: Placement, load: Float64) -> Float64:
    """Return picks per rank, float64[samples, layers, ranks], of picks per expert [samples, layers, experts].

    Experts with one copy (or all of them on one rank) stay; the others are spread over their ranks.
    """
    samples, layers, _ = load.shape
    result = np.empty((samples, layers, placement.ranks))
    for layer in range(layers):
        on_ranks = placement.on_ranks[layer] > 0
        spread = np.flatnonzero(on_ranks.sum(axis=1) > 1)
        fixed = np.setdiff1d(np.arange(placement.experts), spread)
        level = load[:, layer, fixed] @ on_ranks[fixed].astype(np.float64)
        result[:, layer] = _poured(
            level, load[:, layer, spread], [np.flatnonzero(on_ranks[e]) for e in spread]
        )
    return result


def _poured(level: Float64, amounts: Float64, homes: list[np.ndarray]) -> Float64:
    """Pour each amount (float64[samples, n]) over its homes, `_SWEEPS` times over."""
    parts = [amounts[:, [number]] / len(home) * np.ones(len(home)) for number, home in enumerate(homes)]
    for part, home in zip(parts, homes, strict=True):
        level[:, home] += part
    for _ in range(_SWEEPS if len(homes) > 1 else 1):
        moved = 0.0
        for number, home in enumerate(homes):
            without = level[:, home] - parts[number]
            part = _fill(without, amounts[:, number])
            moved = max(moved, float(np.abs(part - parts[number]).max(initial=0.0)))
            level[:, home] = without + part
            parts[number] = part
        if moved < 1e-6 * max(1.0, float(amounts.max(initial=0.0))):
            break
    return level


def _fill(level: Float64, amount: Float64) -> Float64:
    """Return how water of `amount` (float64[samples]) lies on ground `level` (float64[samples, homes])."""
    ground = np.sort(level, axis=1)
    homes = ground.shape[1]
    counts = np.arange(1, homes + 1)
    heights = (amount[:, None] + np.cumsum(ground, axis=1)) / counts
    wet = (heights > ground).sum(axis=1).clip(1)
    height = heights[np.arange(len(level)), wet - 1]
    return np.maximum(height[:, None] - level, 0.0)


def capped(load: Float64, factor: float, reroute: bool) -> Float64:
    """Return picks per expert when each takes at most ceil(factor x the mean); float64[..., experts].

    What is above is dropped, or (with `reroute`) goes to experts with room in proportion to it.
    """
    mean = load.mean(axis=-1, keepdims=True)
    cap = np.ceil(factor * mean - 1e-9)
    kept = np.minimum(load, cap)
    if not reroute:
        return kept
    over = (load - kept).sum(axis=-1, keepdims=True)
    room = cap - kept
    whole = room.sum(axis=-1, keepdims=True)
    return kept + room * np.divide(np.minimum(over, whole), whole, out=np.zeros_like(whole), where=whole > 0)


def capacity(factor: float, tokens: int, topk: float, experts: int) -> int:
    """Return the picks that an expert may take of a step of `tokens` tokens."""
    return ceil(factor * tokens * topk / experts)


# Placement that knows nodes: copies of an expert lie on different nodes, and tokens go to the nearest.
#
# Copies are given as EPLB does. An expert's copies then go to nodes that hold none of it yet, the lightest
# first, and within a node to the lightest GPU with room. Tokens take a copy on their own node where there is
# one, as SGLang's static dispatch chooses among copies, so that fewer of them cross the network.


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
