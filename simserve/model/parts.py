"""A model taken apart into its weight matrices: the one place that knows how wide each of them is.

Totals, FLOPs, bytes per GPU, bytes read per step, the products of a step and the shapes that the profiler
sweeps are folds over these parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple

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
"""`plain` are norms, biases and routers: small, never quantised, and whole on every GPU."""

Split = Literal["rows", "columns", "kv_heads", "experts", "none"]
"""How tp cuts a part: its outputs; its inputs; its outputs, but no finer than KV heads; over experts; not."""


@dataclass(frozen=True)
class Part:
    """Parameters of one layer (or of the model's ends) that are stored and used alike: a [rows, columns]."""

    kind: Kind
    rows: int
    """Outputs of a matrix; of routed experts those of all matrices of one expert together."""
    columns: int = 1
    """Inputs."""
    split: Split = "none"
    product: str = ""
    """The kernel that multiplies with it, alone or fused with others of that name; "": looked up or added."""
    active: float = 1.0
    """Share of the parameters that one token uses."""
    copies: int = 1
    """Matrices of this shape: routed experts."""
    kv_heads: int = 0
    """Heads that a `kv_heads` split cannot cut."""

    @property
    def params(self) -> int:
        """Parameters in the whole model."""
        return self.rows * self.columns * self.copies

    @property
    def matmul(self) -> bool:
        """False if the parameters are looked up or added, not multiplied."""
        return bool(self.product)

    @property
    def quantised(self) -> bool:
        """True if the checkpoint's format holds for it, False if it stays at 16 bit."""
        return self.matmul and self.kind not in ("head", "plain")

    def local(self, tp: int) -> tuple[int, int]:
        """Return (rows, columns) on one of `tp` GPUs, padded as engines do where tp does not divide them."""
        match self.split:
            case "rows":
                return ceil(self.rows / tp), self.columns
            case "columns":
                return self.rows, ceil(self.columns / tp)
            case "kv_heads":
                return self.rows // self.kv_heads * max(1, ceil(self.kv_heads / tp)), self.columns
            case _:
                return self.rows, self.columns


class Product(NamedTuple):
    """One matrix product of one GPU: y[m, n] = x[m, k] W[k, n]."""

    kind: Kind
    n: int
    k: int


def products(parts: Iterable[Part], tp: int) -> dict[str, Product]:
    """Return the products of one of `tp` GPUs by name, in order; parts of one name are one wide matrix.

    Routed experts, whose products depend on the tokens' choice, are left out.
    """
    made: dict[str, Product] = {}
    for part in parts:
        if not part.matmul or part.split == "experts":
            continue
        n, k = part.local(tp)
        known = made.get(part.product)
        made[part.product] = Product(part.kind, n + (known.n if known else 0), k)
    return made


def layer_parts(group: LayerGroup, hidden: int) -> list[Part]:
    """Return the parts of one layer of `group`, with two norms per attention."""
    parts = [part for attention in group.attentions for part in attention_parts(attention, hidden)]
    parts += [part for ffn in group.ffns for part in ffn_parts(ffn, hidden)]
    parts.append(Part("plain", 2 * len(group.attentions) * hidden))
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


def routed_share(moe: MoeFfn) -> float:
    """Return the share of the routed experts that one token uses; picks of zero experts do not count."""
    return moe.num_experts_per_tok / (moe.n_routed_experts + moe.zero_experts)


def expert_params(moe: MoeFfn, hidden: int) -> int:
    """Return the parameters of one routed expert (a gated MLP)."""
    parts = [part for part in ffn_parts(moe, hidden) if part.kind == "routed_expert"]
    return sum(part.rows * part.columns for part in parts)


def attention_parts(attention: Attention, hidden: int) -> Iterator[Part]:
    """Yield the parts of one attention, its projections in and out included."""
    match attention:
        case GqaAttention():
            yield from _gqa(attention, hidden)
        case MlaAttention():
            yield from _mla(attention, hidden)
        case LinearAttention():
            yield from _linear(attention, hidden)


def ffn_parts(ffn: Ffn, hidden: int) -> Iterator[Part]:
    """Yield the parts of one feed-forward block."""
    match ffn:
        case DenseFfn():
            width, bias = ffn.intermediate_size, ffn.bias
            yield from mlp_parts("dense_ffn", "MLP", width, hidden, ffn.matrices)
            if bias:
                yield Part("plain", (ffn.matrices - 1) * width + hidden)
        case MoeFfn():
            yield from _moe(ffn, hidden)


def mlp_parts(kind: Kind, name: str, width: int, hidden: int, matrices: int = 3) -> list[Part]:
    """Return the matrices of an MLP: gate (with three `matrices`) and up are one product."""
    up = [Part(kind, width, hidden, "rows", f"{name} up")] * (matrices - 1)
    return [*up, Part(kind, hidden, width, "columns", f"{name} down")]


def _gqa(attention: GqaAttention, hidden: int) -> Iterator[Part]:
    queries = attention.num_attention_heads * attention.head_dim
    gates = queries if attention.output_gate else 0
    heads, rank = attention.num_key_value_heads, attention.q_lora_rank
    pairs = 2 * heads * attention.head_dim
    first = "qkv down" if rank else "qkv"
    if rank:
        yield Part("attention", rank, hidden, "none", first)
    else:
        yield Part("attention", queries + gates, hidden, "rows", first)
    yield Part("attention", pairs, hidden, "kv_heads", first, kv_heads=heads)
    if rank:
        yield Part("plain", rank)
        yield Part("attention", queries + gates, rank, "rows", "q up")
    yield Part("attention", hidden, queries, "columns", "attention out")
    biases = (queries + gates + pairs) * attention.bias + hidden * attention.output_bias
    norms = 2 * attention.head_dim * attention.qk_norm
    sinks = attention.num_attention_heads * attention.sinks
    if biases + norms + sinks:
        yield Part("plain", biases + norms + sinks)


def _mla(attention: MlaAttention, hidden: int) -> Iterator[Part]:
    heads, rank, latent = attention.num_attention_heads, attention.q_lora_rank, attention.kv_lora_rank
    queries = heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim)
    expanded = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    width = latent + attention.qk_rope_head_dim
    if rank:
        yield Part("attention", rank + width, hidden, "none", "q and latent down")
        yield Part("attention", queries, rank, "rows", "q up")
    else:
        yield Part("attention", queries, hidden, "rows", "q")
        yield Part("attention", width, hidden, "none", "latent down")
    yield Part("plain", rank + latent)
    yield Part("attention", expanded, latent, "rows", LATENT_UP)
    if attention.index_topk:
        index_heads, index_width = attention.index_n_heads, attention.index_head_dim
        yield Part("attention", index_heads * index_width, rank or hidden, "none", "indexer q")
        yield Part("attention", index_width, hidden, "none", "indexer k")
        yield Part("plain", index_heads, hidden, "none", "indexer weights")
    yield Part("attention", hidden, heads * attention.v_head_dim, "columns", "attention out")


LATENT_UP = "latent up"
"""The product from latents to keys and values, which the attention of MLA computes in either of its forms."""


def _linear(attention: LinearAttention, hidden: int) -> Iterator[Part]:
    """Take all matrices as one of the model's width; what is left over of it is convolution and vectors."""
    rows, rest = divmod(attention.params, hidden)
    yield Part("attention", rows, hidden, "rows", "linear attention projections")
    if rest:
        yield Part("attention", rest, 1, "rows")


def _moe(moe: MoeFfn, hidden: int) -> Iterator[Part]:
    width, experts = moe.moe_intermediate_size, moe.n_routed_experts
    share = routed_share(moe)
    yield router_part(moe, hidden)
    yield from shared_parts(moe, hidden)
    yield Part("routed_expert", 3 * width, hidden, "experts", ROUTED, active=share, copies=experts)
    if moe.bias:
        yield Part("routed_expert", 2 * width + hidden, 1, "experts", active=share, copies=experts)
        yield Part("plain", experts + moe.zero_experts)


def router_part(moe: MoeFfn, hidden: int) -> Part:
    """Return the matrix that chooses experts; zero experts are among its outputs."""
    return Part("plain", moe.n_routed_experts + moe.zero_experts, hidden, "none", "router gate")


def shared_parts(moe: MoeFfn, hidden: int) -> list[Part]:
    """Return the matrices of the shared experts, which are one MLP, and their gate."""
    if not moe.shared_intermediate_size:
        return []
    parts = mlp_parts("shared_expert", "shared expert", moe.shared_intermediate_size, hidden)
    return parts + [Part("plain", 1, hidden, "none", "shared expert gate")] * moe.shared_gate


ROUTED = "routed experts"
"""The products of routed experts, three matrices each."""
