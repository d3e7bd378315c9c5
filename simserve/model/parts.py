"""A model taken apart into its weight matrices: those of its layers, and of its ends.

Totals, FLOPs, bytes per GPU, bytes read per step, the products of a step and the shapes that the profiler
sweeps are folds over these parts. How wide a layer's matrices are is known to its kinds (`layers`).
"""

from __future__ import annotations

from collections.abc import Iterator

from simserve.model.layers.base import Part
from simserve.model.spec import LayerGroup, ModelSpec


def layer_parts(group: LayerGroup, hidden: int) -> list[Part]:
    """Return the parts of one layer of `group`, with two norms per attention."""
    parts = [part for attention in group.attentions for part in attention.parts(hidden)]
    parts += [part for ffn in group.ffns for part in ffn.parts(hidden)]
    parts.append(Part("plain", 2 * len(group.attentions) * hidden))
    if group.residual is not None:
        parts += group.residual.parts(hidden) * group.blocks
    return parts


def first_parts(spec: ModelSpec) -> list[Part]:
    """Return what comes before the layers: the token embedding and learned positions."""
    parts = [Part("embedding", spec.vocab_size, spec.hidden_size, "rows")]
    if spec.learned_positions:
        parts.append(Part("plain", spec.learned_positions, spec.hidden_size))
    return parts


def last_parts(spec: ModelSpec) -> list[Part]:
    """Return what comes after the layers: the last norm and the head.

    A tied head holds no parameters of its own where the embedding lies (see `weights` for pipelines).
    """
    norm = Part("plain", spec.hidden_size)
    return [norm] if spec.tie_word_embeddings else [norm, head_part(spec)]


def head_part(spec: ModelSpec) -> Part:
    """Return the matrix that makes logits, whether it is the embedding or one of its own."""
    return Part("head", spec.vocab_size, spec.hidden_size, "rows", "output head")


def all_parts(spec: ModelSpec) -> Iterator[tuple[int, Part]]:
    """Yield (how often, part) over the whole model."""
    for part in first_parts(spec) + last_parts(spec):
        yield 1, part
    for group in spec.layers:
        for part in layer_parts(group, spec.hidden_size):
            yield group.count, part
