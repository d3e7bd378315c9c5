"""Llama 4 (text): three of four layers attend within chunks, and experts come every n-th layer.

Every fourth layer has no rotary positions and full attention. An MoE layer has one routed expert per
token and one shared expert of the same width. Images are not modelled.
"""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, Layer, decoder, gqa
from simserve.model.readers.spans import FULL, chunked
from simserve.model.spec import DenseFfn, ModelSpec, MoeFfn

_FULL_EVERY = 4
"""Layers without rotary positions, hence with full attention (transformers' Llama4TextConfig default)."""


@READERS.register("llama4")
@READERS.register("llama4_text")
@READERS.register("Llama4ForConditionalGeneration")
@READERS.register("Llama4ForCausalLM")
def read_llama4(config: Config, name: str) -> ModelSpec:
    """Read Llama 4 Scout and Maverick."""
    config.ignore("use_qk_norm", "for_llm_compressor")  # that norm has no weights
    bias = config.flag("attention_bias", False)
    width = config.size("intermediate_size")
    moe = MoeFfn(
        n_routed_experts=config.size("num_local_experts"),
        num_experts_per_tok=config.size("num_experts_per_tok"),
        moe_intermediate_size=width,
        n_shared_experts=1,
        shared_intermediate_size=width,
    )
    mlp = DenseFfn(config.size("intermediate_size_mlp"))
    routed = _moe_layers(config)
    layers: list[Layer] = []
    for index, local in enumerate(_local_layers(config)):
        span = chunked(config.size("attention_chunk_size")) if local else FULL
        attention = gqa(config, bias=bias, output_bias=bias, **span)
        layers.append(((attention,), (moe if index in routed else mlp,)))
    return decoder(config, name, layers)


def _local_layers(config: Config) -> list[bool]:
    layers = config.size("num_hidden_layers")
    if config.has("layer_types"):
        config.ignore("no_rope_layers", "no_rope_layer_interval")
        kinds = config.words("layer_types", ["chunked_attention", "full_attention"], layers)
        return [kind == "chunked_attention" for kind in kinds]
    if config.counts("no_rope_layers"):
        return [uses_rope != 0 for uses_rope in config.counts("no_rope_layers", layers)]
    every = config.size("no_rope_layer_interval", _FULL_EVERY)
    return [(index + 1) % every != 0 for index in range(layers)]


def _moe_layers(config: Config) -> set[int]:
    step = config.size("interleave_moe_layer_step")
    listed = config.counts("moe_layers")
    return set(listed) if listed else set(range(step - 1, config.size("num_hidden_layers"), step))
