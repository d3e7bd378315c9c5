"""Peak activation memory of one step: what vLLM's profiling run finds, by formula.

Two moments compete: the widest block of a layer at the full token budget, and the sampler at the full
number of sequences. Activations are 16 bit. What a real allocator adds (fragments) is not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.model.parallel import Parallelism
from simserve.model.spec import (
    Attention,
    DenseFfn,
    Ffn,
    GqaAttention,
    LinearAttention,
    MlaAttention,
    ModelSpec,
    MoeFfn,
)

_BYTES = 2


@dataclass(frozen=True)
class ActivationPeak:
    """Peak in bytes, and the moment it belongs to in words."""

    bytes: int
    basis: str


def activation_peak(
    spec: ModelSpec, parallelism: Parallelism, tokens: int, sequences: int, logit_bytes: int
) -> ActivationPeak:
    """Return the peak of a step of `tokens` tokens that samples for `sequences` of them.

    `logit_bytes` is what the sampler keeps per sequence and word of the vocabulary.
    """
    width = widest_block(spec, parallelism)
    layer = tokens * _BYTES * (2 * spec.hidden_size + width)
    rows = min(sequences, tokens)
    sampler = rows * spec.vocab_size * logit_bytes + tokens * _BYTES * 2 * spec.hidden_size
    if layer >= sampler:
        return ActivationPeak(
            layer, f"{tokens} tokens x 2 B x (2 x hidden {spec.hidden_size} + widest block {width})"
        )
    return ActivationPeak(
        sampler,
        f"sampler: {rows} sequences x {spec.vocab_size} words x {logit_bytes} B, and {tokens} tokens x 2 B x "
        f"2 x hidden {spec.hidden_size}",
    )


def widest_block(spec: ModelSpec, parallelism: Parallelism) -> int:
    """Return the most values per token that any attention or feed-forward block keeps on one GPU."""
    attentions = [_attention(it, spec, parallelism.tp) for group in spec.layers for it in group.attentions]
    ffns = [_ffn(it, spec.hidden_size, parallelism) for group in spec.layers for it in group.ffns]
    return max(attentions + ffns)


def _attention(attention: Attention, spec: ModelSpec, tp: int) -> int:
    """Projections and the output of the heads."""
    match attention:
        case GqaAttention():
            heads = _ceil(attention.num_attention_heads, tp) * (3 if attention.output_gate else 2)
            pairs = 2 * max(1, _ceil(attention.num_key_value_heads, tp))
            return (heads + pairs) * attention.head_dim
        case MlaAttention():
            key = attention.qk_nope_head_dim + attention.qk_rope_head_dim
            return _ceil(attention.num_attention_heads, tp) * 2 * (key + attention.v_head_dim)
        case LinearAttention():
            return _ceil(attention.params, spec.hidden_size * tp)


def _ffn(ffn: Ffn, hidden: int, parallelism: Parallelism) -> int:
    """Gate, up and their product; for experts one copy of the token per pick, in and out."""
    match ffn:
        case DenseFfn():
            return ffn.matrices * _ceil(ffn.intermediate_size, parallelism.tp)
        case MoeFfn():
            cut = parallelism.tp * parallelism.dp // parallelism.ep
            width = _ceil(ffn.moe_intermediate_size, cut)
            return ffn.num_experts_per_tok * (max(2 * width, hidden) + width)


def _ceil(value: int, parts: int) -> int:
    return -(-value // parts)
