"""Parameters and FLOPs of a model."""

from __future__ import annotations

from simserve.model.layers import GqaAttention, MlaAttention
from simserve.model.layers.base import Form
from simserve.model.parts import all_parts
from simserve.model.spec import ModelSpec

# FLOPs of attention scores, and what follows from them: intensity, and when absorbing pays.
#
# A pair is one query token and one context token in one layer; a multiply-add counts 2. Latent attention
# has two forms: expanded (keys and values rebuilt per head, for long prefills) and absorbed (queries moved
# into the latent space, for decoding). Domain page, section 3.


def flops_per_pair(spec: ModelSpec, form: Form = "expanded", context_tokens: float | None = None) -> float:
    """Return the FLOPs of one (query, context) pair, summed over all layers.

    With `context_tokens`, layers that attend only a part of such a context count by that share; without
    it every layer counts whole. Use "absorbed" for decode steps of latent attention, "expanded" for prefill.
    """
    total = 0.0
    for group in spec.layers:
        for attention in group.attentions:
            share = 1.0 if context_tokens is None else attention.attended(context_tokens) / context_tokens
            total += group.count * (attention.pair_flops(form) * share + attention.index_flops)
    return total


def decode_intensity(attention: GqaAttention | MlaAttention, kv_dtype: str = "bf16") -> float:
    """Return FLOPs per byte of cache read by a decoding query, one query per sequence, tp 1."""
    return attention.pair_flops("absorbed") / attention.token_bytes(1, kv_dtype)


def expansion_flops(attention: MlaAttention) -> int:
    """Return the FLOPs that rebuild one context token's keys and values (expanded form).

    Absorbing one query token costs the same: both multiply by the two halves of the same matrix.
    """
    width = attention.qk_nope_head_dim + attention.v_head_dim
    return 2 * attention.kv_lora_rank * attention.num_attention_heads * width


def absorption_break_even_tokens(attention: MlaAttention, context_tokens: float | None = None) -> float:
    """Return the number of new tokens below which the absorbed form needs fewer FLOPs.

    `context_tokens` are cached; None stands for a context without end. The expanded form rebuilds the
    whole context once, the absorbed one pays more per pair and once per new token.
    """
    expand = expansion_flops(attention)
    extra = attention.pair_flops("absorbed") - attention.pair_flops("expanded")
    if context_tokens is None:
        return expand / extra
    return expand * context_tokens / (extra * context_tokens + expand)


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
    return 2 * (linear + head) + sum(
        group.count * attention.state_flops for group in spec.layers for attention in group.attentions
    )
