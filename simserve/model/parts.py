"""A model taken apart into its weight matrices: the one place that knows how wide each of them is.

Totals, active parameters, FLOPs, bytes per GPU and bytes read per step are sums over these parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from simserve.model.spec import (
    Attention,
    DenseFfn,
    Ffn,
    GqaAttention,
    LayerGroup,
    LinearAttention,
    MlaAttention,
    ModelSpec,
    MoeFfn,
)

Kind = Literal["embedding", "head", "attention", "dense_ffn", "shared_expert", "routed_expert", "plain"]
"""`plain` are norms and routers: small, never quantised, and whole on every GPU."""

Split = Literal["tp", "kv_heads", "experts", "none"]
"""How a part spreads: over tp; over tp but no finer than KV heads; over experts; not at all."""


@dataclass(frozen=True)
class Part:
    """Parameters of one layer (or of the model's ends) that are stored and used alike."""

    kind: Kind
    params: int
    split: Split
    active: float = 1.0
    """Share of the parameters that one token uses."""
    matmul: bool = True
    """False if the parameters are looked up or added, not multiplied."""
    kv_heads: int = 0
    """Heads that a `kv_heads` split cannot cut."""


def layer_parts(group: LayerGroup, hidden: int) -> list[Part]:
    """Return the parts of one layer of `group`, with two norms per attention."""
    parts = [part for attention in group.attentions for part in _attention(attention, hidden)]
    parts += [part for ffn in group.ffns for part in _ffn(ffn, hidden)]
    parts.append(_norm(2 * len(group.attentions) * hidden))
    return parts


def first_parts(spec: ModelSpec) -> list[Part]:
    """Return what comes before the layers: the token embedding and learned positions."""
    parts = [Part("embedding", spec.vocab_size * spec.hidden_size, "tp", matmul=False)]
    if spec.learned_positions:
        parts.append(Part("plain", spec.learned_positions * spec.hidden_size, "none", matmul=False))
    return parts


def last_parts(spec: ModelSpec) -> list[Part]:
    """Return what comes after the layers: the last norm and the head.

    A tied head holds no parameters of its own where the embedding lies (see `weights` for pipelines).
    """
    parts = [_norm(spec.hidden_size)]
    if not spec.tie_word_embeddings:
        parts.append(Part("head", spec.vocab_size * spec.hidden_size, "tp"))
    return parts


def routed_share(moe: MoeFfn) -> float:
    """Return the share of the routed experts that one token uses; picks of zero experts do not count."""
    return moe.num_experts_per_tok / (moe.n_routed_experts + moe.zero_experts)


def expert_params(moe: MoeFfn, hidden: int) -> int:
    """Return the parameters of one routed expert (a gated MLP)."""
    biases = 2 * moe.moe_intermediate_size + hidden if moe.bias else 0
    return 3 * hidden * moe.moe_intermediate_size + biases


def _norm(params: int) -> Part:
    return Part("plain", params, "none", matmul=False)


def _attention(attention: Attention, hidden: int) -> Iterator[Part]:
    match attention:
        case GqaAttention():
            yield from _gqa(attention, hidden)
        case MlaAttention():
            yield from _mla(attention, hidden)
        case LinearAttention():
            yield Part("attention", attention.params, "tp")


def _gqa(attention: GqaAttention, hidden: int) -> Iterator[Part]:
    queries = attention.num_attention_heads * attention.head_dim
    pairs = 2 * attention.num_key_value_heads * attention.head_dim
    rank = attention.q_lora_rank
    if rank:
        yield Part("attention", hidden * rank, "none")
        yield _norm(rank)
    gates = 2 if attention.output_gate else 1
    yield Part("attention", (rank or hidden) * queries * gates + queries * hidden, "tp")
    yield Part("attention", hidden * pairs, "kv_heads", kv_heads=attention.num_key_value_heads)
    biases = (queries + pairs) * attention.bias + hidden * attention.output_bias
    norms = 2 * attention.head_dim * attention.qk_norm
    if biases + norms:
        yield _norm(biases + norms)


def _mla(attention: MlaAttention, hidden: int) -> Iterator[Part]:
    heads, rank, latent = attention.num_attention_heads, attention.q_lora_rank, attention.kv_lora_rank
    key = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    yield Part("attention", hidden * (rank + latent + attention.qk_rope_head_dim), "none")
    yield _norm(rank + latent)
    expand = latent * heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    yield Part(
        "attention", (rank or hidden) * heads * key + expand + heads * attention.v_head_dim * hidden, "tp"
    )
    if attention.index_topk:
        width = attention.index_n_heads * attention.index_head_dim
        yield Part(
            "attention",
            (rank or hidden) * width + hidden * (attention.index_head_dim + attention.index_n_heads),
            "none",
        )


def _ffn(ffn: Ffn, hidden: int) -> Iterator[Part]:
    match ffn:
        case DenseFfn():
            yield Part("dense_ffn", ffn.matrices * hidden * ffn.intermediate_size, "tp")
            if ffn.bias:
                yield _norm((ffn.matrices - 1) * ffn.intermediate_size + hidden)
        case MoeFfn():
            yield from _moe(ffn, hidden)


def _moe(moe: MoeFfn, hidden: int) -> Iterator[Part]:
    yield Part(
        "routed_expert",
        moe.n_routed_experts * expert_params(moe, hidden),
        "experts",
        active=routed_share(moe),
    )
    if moe.shared_intermediate_size:
        yield Part("shared_expert", 3 * hidden * moe.shared_intermediate_size, "tp")
    slots = moe.n_routed_experts + moe.zero_experts
    yield Part("plain", hidden * slots + slots * moe.bias, "none")
