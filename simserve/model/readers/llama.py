"""Dense decoders of the Llama shape: grouped-query attention and a gated MLP in every layer.

Llama 2 and 3, CodeLlama, Mistral, Qwen 2, 2.5 and 3 (the latter with a norm on queries and keys).
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
def read_llama(config: Config, name: str) -> ModelSpec:
    """Read Llama and Mistral."""
    bias = config.flag("attention_bias", False)
    return _read(config, name, bias=bias, output_bias=bias)


@READERS.register("qwen2")
@READERS.register("Qwen2ForCausalLM")
def read_qwen2(config: Config, name: str) -> ModelSpec:
    """Read Qwen 2 and 2.5, whose q, k and v projections have biases without saying so."""
    return _read(config, name, bias=True)


@READERS.register("qwen3")
@READERS.register("Qwen3ForCausalLM")
def read_qwen3(config: Config, name: str) -> ModelSpec:
    """Read the dense Qwen 3 models."""
    bias = config.flag("attention_bias", False)
    return _read(config, name, bias=bias, output_bias=bias, qk_norm=True)


def _read(config: Config, name: str, **attention: bool) -> ModelSpec:
    ffn = dense(config, bias=config.flag("mlp_bias", False))
    layers = [((gqa(config, **attention, **span),), (ffn,)) for span in spans(config)]
    return decoder(config, name, layers)
