"""Parameters and linear-layer FLOPs of a model."""

from __future__ import annotations

from collections.abc import Iterator

from simserve.model.parts import Part, first_parts, last_parts, layer_parts
from simserve.model.spec import LinearAttention, ModelSpec

_DELTA_RULE_FLOPS = 6
"""FLOPs per element of a linear attention's state and token: decay, read for the correction, update, read
for the output (8 without the decay fused; the gated delta rule, arXiv 2412.06464, counted as three
multiply-adds)."""


def all_parts(spec: ModelSpec) -> Iterator[tuple[int, Part]]:
    """Yield (how often, part) over the whole model."""
    for part in first_parts(spec) + last_parts(spec):
        yield 1, part
    for group in spec.layers:
        for part in layer_parts(group, spec.hidden_size):
            yield group.count, part


def total_params(spec: ModelSpec) -> int:
    """Return all parameters, embeddings and head included, multi-token-prediction layers not."""
    return sum(count * part.params for count, part in all_parts(spec))


def active_params(spec: ModelSpec) -> float:
    """Return the parameters that one token uses, embeddings and head included.

    Picks of zero-cost experts are taken as uniform over the router's slots.
    """
    return sum(count * part.params * part.active for count, part in all_parts(spec))


def flops_per_token(spec: ModelSpec) -> float:
    """Return the FLOPs of one token outside attention scores: 2 per active parameter that is multiplied.

    The head counts, the embedding look-up does not. For latent attention this holds in both of its forms:
    expanding one token's keys costs as much as absorbing one token's query. Linear attention adds its
    state update.
    """
    linear = sum(count * part.params * part.active for count, part in all_parts(spec) if part.matmul)
    head = spec.vocab_size * spec.hidden_size if spec.tie_word_embeddings else 0
    return 2 * (linear + head) + _state_flops(spec)


def _state_flops(spec: ModelSpec) -> float:
    return sum(
        _DELTA_RULE_FLOPS * group.count * attention.num_attention_heads * attention.head_dim**2
        for group in spec.layers
        for attention in group.attentions
        if isinstance(attention, LinearAttention)
    )
