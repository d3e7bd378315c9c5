"""Which kernel shapes the models need on one GPU of a TP group, and which sizes to sweep.

Products are those of the model's parts; the other kernels are what `latency.blocks` asks the tables for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simserve.errors import ProfileError
from simserve.model.parts import Part, head_part, layer_parts, products
from simserve.model.spec import DenseFfn, Ffn, GqaAttention, MlaAttention, ModelSpec, MoeFfn


class HeadShape(NamedTuple):
    """Attention heads of one rank."""

    q_heads: int
    kv_heads: int
    head_dim: int
    window: int


class LatentShape(NamedTuple):
    """MLA of one rank."""

    q_heads: int
    kv_lora: int
    rope: int
    nope: int
    v_dim: int


class ExpertShape(NamedTuple):
    """Routed experts of one layer, and how matrices are split."""

    hidden: int
    inter: int
    experts: int
    topk: int
    tp: int


class RowShape(NamedTuple):
    """A kernel that only moves memory."""

    kind: str
    width: int
    """Elements of one row."""
    row_bytes: int
    """Bytes read and written per row, as the step latency counts them."""
    written: int = 0
    """Elements of a row that go to the KV cache."""


@dataclass(frozen=True)
class Sizes:
    """What is swept."""

    tokens: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    prefixes: tuple[int, ...]
    message_bytes: tuple[int, ...]


CUDA_SIZES = Sizes(
    tokens=(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384),
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    contexts=(64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
    prompts=(16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384),
    prefixes=(256, 1024, 4096, 16384, 65536),
    message_bytes=tuple(2**power for power in range(10, 29)),
)
CPU_SIZES = Sizes(
    tokens=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    batches=(1, 2, 4, 8, 16),
    contexts=(16, 64, 128, 256, 512, 1024, 2048),
    prompts=(8, 32, 64, 128, 256, 512),
    prefixes=(64, 256, 1024),
    message_bytes=tuple(2**power for power in range(10, 23, 2)),
)


@dataclass
class Shapes:
    """All shapes of some models; lists without doubles, those of the first model first."""

    dtype: str
    kv_dtypes: tuple[str, ...]
    weight_dtypes: tuple[str, ...]
    sizes: Sizes
    products: list[tuple[int, int]] = field(default_factory=list)
    """(n, k) of weights in the weights' dtype."""
    plain_products: list[tuple[int, int]] = field(default_factory=list)
    """(n, k) of weights that stay in the activations' dtype: router and head."""
    heads: list[HeadShape] = field(default_factory=list)
    latents: list[LatentShape] = field(default_factory=list)
    experts: list[ExpertShape] = field(default_factory=list)
    rows: list[RowShape] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    def add(self, where: str, shape: object) -> None:
        """Add a shape to one of the lists unless it is there."""
        known = getattr(self, where)
        if shape not in known:
            known.append(shape)


def shapes_of(
    models: Sequence[ModelSpec],
    tps: Sequence[int],
    dtype: str,
    weight_dtypes: Sequence[str],
    sizes: Sizes,
    width_bytes: int,
    kv_dtypes: Sequence[str] = (),
) -> Shapes:
    """Return the shapes of `models` at every TP degree that divides their heads.

    `width_bytes` is the size of an activation, `kv_dtypes` those of the cache (default: `dtype`). Raises
    `ProfileError` if no degree fits a model.
    """
    shapes = Shapes(dtype, tuple(kv_dtypes) or (dtype,), tuple(weight_dtypes), sizes)
    for model in models:
        fitting = [tp for tp in tps if _fits(model, tp)]
        if not fitting:
            asked = ", ".join(map(str, tps))
            raise ProfileError(f"--tp {asked}: none divides the attention heads of {model.name}")
        for tp in fitting:
            _add_model(shapes, model, tp, width_bytes)
    shapes.ranks = [tp for tp in tps if tp > 1]
    return shapes


def _fits(model: ModelSpec, tp: int) -> bool:
    heads = [attention.num_attention_heads for group in model.layers for attention in group.attentions]
    return all(count % tp == 0 for count in heads)


def _add_model(shapes: Shapes, model: ModelSpec, tp: int, width: int) -> None:
    hidden = model.hidden_size
    shapes.add("rows", RowShape("add_rmsnorm", hidden, 4 * hidden * width))
    for group in model.layers:
        _add_products(shapes, layer_parts(group, hidden), tp)
        for attention in group.attentions:
            if isinstance(attention, GqaAttention):
                _add_gqa(shapes, attention, tp, width)
            elif isinstance(attention, MlaAttention):
                _add_mla(shapes, attention, tp, width)
        for ffn in group.ffns:
            _add_ffn(shapes, ffn, hidden, tp, width)
    _add_products(shapes, [head_part(model)], tp)
    shapes.add("rows", RowShape("rmsnorm", hidden, 2 * hidden * width))
    shapes.add("rows", RowShape("embedding", hidden, 2 * hidden * width))
    shapes.add("rows", RowShape("argmax", model.vocab_size, 8 * model.vocab_size))


def _add_products(shapes: Shapes, parts: Iterable[Part], tp: int) -> None:
    for kind, n, k in products(parts, tp).values():
        shapes.add("plain_products" if kind in ("head", "plain") else "products", (n, k))


def _add_gqa(shapes: Shapes, attention: GqaAttention, tp: int, width: int) -> None:
    q_heads = attention.num_attention_heads // tp
    kv_heads = max(1, attention.num_key_value_heads // tp)
    q_size, kv_size = q_heads * attention.head_dim, kv_heads * attention.head_dim
    window = attention.span_tokens if attention.span == "window" else 0
    shapes.add("heads", HeadShape(q_heads, kv_heads, attention.head_dim, window))
    if attention.qk_norm:
        shapes.add("rows", RowShape("rmsnorm", q_size + kv_size, 2 * (q_size + kv_size) * width))
    moved = 2 * (q_size + kv_size) * width + 4 * kv_size * width
    shapes.add("rows", RowShape("rope_write", q_size + kv_size, moved, 2 * kv_size))


def _add_mla(shapes: Shapes, attention: MlaAttention, tp: int, width: int) -> None:
    heads = attention.num_attention_heads // tp
    latent = attention.kv_lora_rank + attention.qk_rope_head_dim
    shapes.add(
        "latents",
        LatentShape(
            heads,
            attention.kv_lora_rank,
            attention.qk_rope_head_dim,
            attention.qk_nope_head_dim,
            attention.v_head_dim,
        ),
    )
    if attention.q_lora_rank:
        normed = attention.q_lora_rank + latent
        shapes.add("rows", RowShape("rmsnorm", normed, 2 * normed * width))
    moved = 2 * (heads + 1) * attention.qk_rope_head_dim * width + 2 * latent * width
    shapes.add("rows", RowShape("rope_write", (heads + 1) * attention.qk_rope_head_dim, moved, latent))


def _add_ffn(shapes: Shapes, ffn: Ffn, hidden: int, tp: int, width: int) -> None:
    if isinstance(ffn, DenseFfn):
        _add_activation(shapes, ffn.intermediate_size, ffn.matrices, tp, width)
    elif isinstance(ffn, MoeFfn):
        slots = ffn.n_routed_experts + ffn.zero_experts
        shapes.add("rows", RowShape("topk", slots, 4 * slots + 8 * ffn.num_experts_per_tok))
        if ffn.shared_intermediate_size:
            _add_activation(shapes, ffn.shared_intermediate_size, 3, tp, width)
            shapes.add("rows", RowShape("add", hidden, 3 * hidden * width))
        shapes.add(
            "experts",
            ExpertShape(hidden, ffn.moe_intermediate_size, ffn.n_routed_experts, ffn.num_experts_per_tok, tp),
        )


def _add_activation(shapes: Shapes, inter: int, matrices: int, tp: int, width: int) -> None:
    local = -(-inter // tp)
    up = local * (matrices - 1)
    shapes.add("rows", RowShape("silu_mul", up, (up + local) * width))
