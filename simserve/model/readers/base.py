"""The registry of readers, and what most architectures have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simserve.errors import ScenarioError, nearest
from simserve.model.config import Config
from simserve.model.modules import module_names
from simserve.model.names import unmodelled
from simserve.model.quantization import checkpoint_of
from simserve.model.spec import Attention, DenseFfn, Ffn, GqaAttention, LayerGroup, MlaAttention, ModelSpec
from simserve.model.vision import vision_tower
from simserve.registry import Registry

Reader = Callable[[Config, str], ModelSpec]
"""Takes the configuration and the model's name; everything that matters must be read or refused."""

READERS: Registry[Reader] = Registry("model architecture", "simserve.model.readers")

Layer = tuple[tuple[Attention, ...], tuple[Ffn, ...]]
"""One layer: its attentions and its feed-forward blocks."""


def read_config(fields: Mapping[str, Any], name: str, place: str) -> ModelSpec:
    """Return the spec of the model whose configuration is `fields`.

    Raises `ScenarioError` for an architecture without a reader and for fields that would be ignored.
    """
    reader = READERS.get(_architecture(fields, place))
    inner = fields.get("text_config")
    all_fields = {**fields, **inner} if isinstance(inner, Mapping) else fields
    config = Config(all_fields, place)
    spec = reader(config, name)
    config.finish()
    types = checkpoint_of(all_fields.get("quantization_config"), module_names(spec), place)
    named = fields.get("architectures") or [""]
    vision = vision_tower(fields, spec.hidden_size)
    return replace(spec, checkpoint=types, vision=vision, architecture=str(named[0]))


def _architecture(fields: Mapping[str, Any], place: str) -> str:
    names = [fields.get("model_type"), *(fields.get("architectures") or [])]
    named = [name for name in names if isinstance(name, str)]
    known = READERS.names()
    for name in named:
        if name in known:
            return name
    if not named:
        raise ScenarioError(f"{place}: neither 'model_type' nor 'architectures' says what the model is")
    if why := unmodelled(" ".join(named)):
        raise ScenarioError(f"{place}: {why}")
    raise ScenarioError(
        f"{place}: architecture {' / '.join(named)} is not supported{nearest(named[0], known)}; "
        f"supported: {', '.join(name for name in known if name.islower())}"
    )


def gqa(config: Config, **settings: Any) -> GqaAttention:
    """Return the grouped-query attention that the usual fields describe, with `settings` on top."""
    heads = config.size("num_attention_heads")
    head_dim = config.size("head_dim", config.size("hidden_size") // heads)
    return GqaAttention(heads, config.size("num_key_value_heads", heads), head_dim, **settings)


def mla(config: Config, **settings: Any) -> MlaAttention:
    """Return the multi-head latent attention that the usual fields describe."""
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim")  # all heads share the one latent
    return MlaAttention(
        num_attention_heads=config.size("num_attention_heads"),
        q_lora_rank=config.count("q_lora_rank", 0),
        kv_lora_rank=config.size("kv_lora_rank"),
        qk_nope_head_dim=config.size("qk_nope_head_dim"),
        qk_rope_head_dim=config.size("qk_rope_head_dim"),
        v_head_dim=config.size("v_head_dim"),
        **settings,
    )


def dense(config: Config, **settings: Any) -> DenseFfn:
    """Return the gated MLP of `intermediate_size`."""
    return DenseFfn(config.size("intermediate_size"), **settings)


def decoder(
    config: Config,
    name: str,
    layers: Sequence[Layer],
    *,
    length: str = "max_position_embeddings",
    tied: bool = False,
    **settings: Any,
) -> ModelSpec:
    """Return the spec of a decoder with these layers, first to last; equal layers share a group.

    `length` names the field of its longest context; `tied` holds where `tie_word_embeddings` is absent.
    """
    kinds: dict[Layer, int] = {}
    order = tuple(kinds.setdefault(layer, len(kinds)) for layer in layers)
    groups = tuple(LayerGroup(order.count(index), *layer) for layer, index in kinds.items())
    return ModelSpec(
        name=name,
        hidden_size=config.size("hidden_size"),
        vocab_size=config.size("vocab_size"),
        max_position_embeddings=config.size(length),
        layers=groups,
        tie_word_embeddings=config.flag("tie_word_embeddings", tied),
        source=config.place,
        num_nextn_predict_layers=config.count("num_nextn_predict_layers", 0),
        layer_order=() if order == tuple(sorted(order)) else order,
        **settings,
    )
