"""Parameters and linear-layer FLOPs of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from simserve.model.kv import token_bytes
from simserve.model.parts import Part, first_parts, last_parts, layer_parts, routed_share
from simserve.model.spec import Attention, GqaAttention, LinearAttention, MlaAttention, ModelSpec, MoeFfn

# How many routed experts a step touches.


def touched_experts(moe: MoeFfn, tokens: float) -> float:
    """Return the expected number of different experts that `tokens` tokens pick, E(1 - (1 - k/E)^B).

    Uniform, independent routing; slots of zero-cost experts take their share of the picks.
    """
    return moe.n_routed_experts * (1 - (1 - routed_share(moe)) ** tokens)


# FLOPs of attention scores, and what follows from them: intensity, and when absorbing pays.
#
# A pair is one query token and one context token in one layer; a multiply-add counts 2. Latent attention
# has two forms: expanded (keys and values rebuilt per head, for long prefills) and absorbed (queries moved
# into the latent space, for decoding). Domain page, section 3.

Form = Literal["expanded", "absorbed"]
"""Form of latent attention; other attentions have only one."""


def pair_flops(attention: Attention, form: Form) -> int:
    """Return the FLOPs of one pair: scores and weighted sum, all heads, a sparse indexer not included."""
    match attention:
        case GqaAttention():
            return 4 * attention.num_attention_heads * attention.head_dim
        case MlaAttention() if form == "absorbed":
            latent = 2 * attention.kv_lora_rank + attention.qk_rope_head_dim
            return 2 * attention.num_attention_heads * latent
        case MlaAttention():
            key = attention.qk_nope_head_dim + attention.qk_rope_head_dim
            return 2 * attention.num_attention_heads * (key + attention.v_head_dim)
        case _:
            return 0


def index_flops(attention: Attention) -> int:
    """Return the FLOPs of one pair in the indexer of sparse attention (all pairs pass it)."""
    if not isinstance(attention, MlaAttention) or not attention.index_topk:
        return 0
    return 2 * attention.index_n_heads * attention.index_head_dim


def attended(attention: Attention, context_tokens: float) -> float:
    """Return how many of the context's tokens one query attends: the window, chunk or top-k at most.

    A chunk is taken as full; on average half of it is.
    """
    match attention:
        case GqaAttention() if attention.span != "full":
            return min(context_tokens, attention.span_tokens)
        case MlaAttention() if attention.index_topk:
            return min(context_tokens, attention.index_topk)
        case _:
            return context_tokens


def flops_per_pair(spec: ModelSpec, form: Form = "expanded", context_tokens: float | None = None) -> float:
    """Return the FLOPs of one (query, context) pair, summed over all layers.

    With `context_tokens`, layers that attend only a part of such a context count by that share; without
    it every layer counts whole. Use "absorbed" for decode steps of latent attention, "expanded" for prefill.
    """
    total = 0.0
    for group in spec.layers:
        for attention in group.attentions:
            share = 1.0 if context_tokens is None else attended(attention, context_tokens) / context_tokens
            total += group.count * (pair_flops(attention, form) * share + index_flops(attention))
    return total


def decode_intensity(attention: GqaAttention | MlaAttention, kv_dtype: str = "bf16") -> float:
    """Return FLOPs per byte of cache read by a decoding query, one query per sequence, tp 1."""
    return pair_flops(attention, "absorbed") / token_bytes(attention, 1, kv_dtype)


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
    extra = pair_flops(attention, "absorbed") - pair_flops(attention, "expanded")
    if context_tokens is None:
        return expand / extra
    return expand * context_tokens / (extra * context_tokens + expand)


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
