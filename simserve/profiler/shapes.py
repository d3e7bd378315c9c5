"""Which kernel shapes the models need on one GPU of a TP group, and which sizes to sweep.

A fold over what the layers say of themselves (`model/layers`), as the latency plan is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simserve.errors import ProfileError
from simserve.model.layers.base import Block, Part, Rows, Shard, products
from simserve.model.layers.gqa import HeadShape
from simserve.model.layers.mla import LatentShape
from simserve.model.layers.moe import ExpertShape
from simserve.model.parts import head_part, layer_parts
from simserve.model.spec import ModelSpec


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
    at = Shard(hidden, tp, width, width)
    for group in model.layers:
        _add_products(shapes, layer_parts(group, hidden), tp)
        for attention in group.attentions:
            _add_rows(shapes, attention.block(at))
            _add_core(shapes, attention.core(tp))
        for ffn in group.ffns:
            _add_rows(shapes, ffn.entry(at))
            _add_rows(shapes, ffn.body(at))
    for moe in model.moes:
        shapes.add("experts", moe.shape(hidden, tp))
    _add_products(shapes, [head_part(model)], tp)
    shapes.add("rows", RowShape("rmsnorm", hidden, 2 * hidden * width))
    shapes.add("rows", RowShape("embedding", hidden, 2 * hidden * width))
    shapes.add("rows", RowShape("argmax", model.vocab_size, 8 * model.vocab_size))


def _add_products(shapes: Shapes, parts: Iterable[Part], tp: int) -> None:
    for one in products(parts, tp).values():
        shapes.add("plain_products" if one.kind in ("head", "plain") else "products", (one.n, one.k))


def _add_rows(shapes: Shapes, block: Block) -> None:
    for rows in block.after.values():
        for row in rows:
            if isinstance(row, Rows) and row.kind:
                shapes.add("rows", RowShape(row.kind, row.values, int(row.bytes), row.written))


def _add_core(shapes: Shapes, core: object) -> None:
    match core:
        case HeadShape():
            shapes.add("heads", core._replace(window=0, chunked=False) if core.chunked else core)
        case LatentShape():
            shapes.add("latents", core._replace(index_topk=0, index_heads=0, index_dim=0))
