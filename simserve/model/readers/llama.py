"""Dense decoders of the Llama shape: grouped-query attention and a gated MLP in every layer.

Llama 2 and 3, CodeLlama, Mistral, Phi 3 and 4, Qwen 2, 2.5 and 3 (this one norms queries and keys).
"""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, decoder, dense, gqa
from simserve.model.readers.spans import spans
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
