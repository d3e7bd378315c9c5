"""How a pipeline divides the layers: vLLM's rule.

Equal shares; the layers left over go one each to the stages before the last, from the back, so that the
stage with the head stays light (vLLM, `get_pp_indices`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simserve.errors import ScenarioError
from simserve.model.spec import LayerGroup, ModelSpec


@dataclass(frozen=True)
class Stage:
    """One pipeline stage."""

    index: int
    layers: tuple[int, ...]
    """Layers of each of the spec's groups that the stage holds."""
    first: bool
    last: bool

    def groups(self, spec: ModelSpec) -> tuple[LayerGroup, ...]:
        """Return the groups of the stage's layers, each with the stage's count of them."""
        pairs = zip(self.layers, spec.layers, strict=True)
        return tuple(replace(group, count=count) for count, group in pairs if count)


def pipeline_stages(spec: ModelSpec, pp: int) -> list[Stage]:
    """Return the stages, first to last. Raises `ScenarioError` if there are more stages than layers."""
    total = spec.num_layers
    if not 1 <= pp <= total:
        raise ScenarioError(f"pp = {pp}, allowed is 1 to {total}: {spec.name} has {total} layers")
    share, left = divmod(total, pp)
    sizes = [share] * pp
    for back in range(2, left + 2):
        sizes[-back] += 1
    return _stages(spec, sizes)


def _stages(spec: ModelSpec, sizes: list[int]) -> list[Stage]:
    order, stages, start = spec.order, [], 0
    for index, size in enumerate(sizes):
        own = order[start : start + size]
        layers = tuple(own.count(group) for group in range(len(spec.layers)))
        stages.append(Stage(index, layers, first=index == 0, last=index == len(sizes) - 1))
        start += size
    return stages
