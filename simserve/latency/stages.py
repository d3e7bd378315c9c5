"""Layers of each pipeline stage, as vLLM splits them: evenly, spare ones to the stages before the last."""

from __future__ import annotations

from dataclasses import replace

from simserve.errors import ScenarioError
from simserve.model.spec import LayerGroup


def stage_layers(layers: tuple[LayerGroup, ...], stages: int) -> list[tuple[LayerGroup, ...]]:
    """Return the layer groups of each stage; raises `ScenarioError` if there are fewer layers than stages."""
    total = sum(group.count for group in layers)
    if stages > total:
        raise ScenarioError(f"pp: {stages} stages for {total} layers; at most {total}")
    sizes = [total // stages] * stages
    for spare in range(total % stages):
        sizes[-2 - spare] += 1
    result, start = [], 0
    for size in sizes:
        result.append(_slice(layers, start, start + size))
        start += size
    return result


def _slice(layers: tuple[LayerGroup, ...], start: int, end: int) -> tuple[LayerGroup, ...]:
    part, place = [], 0
    for group in layers:
        inside = min(end, place + group.count) - max(start, place)
        if inside > 0:
            part.append(replace(group, count=inside))
        place += group.count
    return tuple(part)
