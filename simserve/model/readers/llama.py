"""Dense decoders of the Llama shape: grouped-query attention and a gated MLP in every layer.

Llama 2 and 3, CodeLlama, Mistral, Phi 3 and 4, Qwen 2, 2.5 and 3 (this one norms queries and keys).
"""

from __future__ import annotations

from simserve.model.layers import DenseFfn, Ffn, MoeFfn
from simserve.model.readers.base import FULL, READERS, Config, Layer, chunked, decoder, dense, gqa, spans
from simserve.model.spec import ModelSpec


@READERS.register("llama")
@READERS.register("LlamaForCausalLM")
@READERS.register("mistral")
@READERS.register("MistralForCausalLM")
@READERS.register("mistral3")
@READERS.register("Mistral3ForConditionalGeneration")
@READERS.register("ministral3")
@READERS.register("Ministral3ForCausalLM")
def read_llama(config: Config, name: str) -> ModelSpec:
    """Read Llama and Mistral, and the text model of Mistral Small 3.1."""
    config.ignore("spatial_merge_size", "projector_hidden_act", "multimodal_projector_bias")
    bias = config.flag("attention_bias", False)
    return _read(config, name, bias=bias, output_bias=bias)


@READERS.register("nemotron")
@READERS.register("NemotronForCausalLM")
def read_nemotron(config: Config, name: str) -> ModelSpec:
    """Read Nemotron-4 and Minitron, whose MLP squares a ReLU between two matrices."""
    bias = config.flag("attention_bias", False)
    return _read(config, name, matrices=2, bias=bias, output_bias=bias)


@READERS.register("phi3")
@READERS.register("Phi3ForCausalLM")
def read_phi3(config: Config, name: str) -> ModelSpec:
    """Read Phi 3 and 4, whose q, k and v are one matrix, and gate and up another."""
    config.require("attention_bias", False, "biases of this attention are not modelled")
    return _read(config, name)


@READERS.register("qwen2")
@READERS.register("Qwen2ForCausalLM")
@READERS.register("qwen2_vl")
@READERS.register("Qwen2VLForConditionalGeneration")
@READERS.register("qwen2_5_vl")
@READERS.register("qwen2_5_vl_text")
@READERS.register("Qwen2_5_VLForConditionalGeneration")
def read_qwen2(config: Config, name: str) -> ModelSpec:
    """Read Qwen 2, 2.5 and their VL models, whose q, k and v projections have biases without saying so."""
    return _read(config, name, bias=True)


@READERS.register("qwen3")
@READERS.register("Qwen3ForCausalLM")
@READERS.register("qwen3_vl")
@READERS.register("qwen3_vl_text")
@READERS.register("Qwen3VLForConditionalGeneration")
def read_qwen3(config: Config, name: str) -> ModelSpec:
    """Read the dense Qwen 3 models."""
    bias = config.flag("attention_bias", False)
    return _read(config, name, bias=bias, output_bias=bias, qk_norm=True)


def _read(config: Config, name: str, *, matrices: int = 3, **attention: bool) -> ModelSpec:
    ffn = dense(config, bias=config.flag("mlp_bias", False), matrices=matrices)
    layers = [((gqa(config, **attention, **span),), (ffn,)) for span in spans(config)]
    return decoder(config, name, layers)


# Llama 4 (text): three of four layers attend within chunks, and experts come every n-th layer.
#
# Every fourth layer has no rotary positions and full attention. An MoE layer has one routed expert per
# token and one shared expert of the same width. Images are not modelled.

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


# Granite 3: the shape of Llama with factors on embedding, attention, residual and logits; dense or MoE.
#
# Granite 4 mixes in Mamba layers and is not modelled.


@READERS.register("granite")
@READERS.register("GraniteForCausalLM")
def read_granite(config: Config, name: str) -> ModelSpec:
    """Read the dense Granite models."""
    return _granite_read(config, name, dense(config, bias=config.flag("mlp_bias", False)))


@READERS.register("granitemoe")
@READERS.register("GraniteMoeForCausalLM")
def read_granite_moe(config: Config, name: str) -> ModelSpec:
    """Read Granite MoE, whose experts are as wide as `intermediate_size`."""
    moe = MoeFfn(
        config.size("num_local_experts"), config.size("num_experts_per_tok"), config.size("intermediate_size")
    )
    return _granite_read(config, name, moe)


def _granite_read(config: Config, name: str, ffn: Ffn) -> ModelSpec:
    config.ignore("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    bias = config.flag("attention_bias", False)
    attention = gqa(config, bias=bias, output_bias=bias)
    return decoder(config, name, [((attention,), (ffn,))] * config.size("num_hidden_layers"), tied=True)
