"""Gemma 1 and 2: wide heads, a gated MLP, and a head that shares the embedding.

Of Gemma 2 every other layer, the first among them, slides over a window. Left out: soft caps of scores and
logits (no memory, and little time), and two of the four norms of a layer of Gemma 2.
"""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, Layer, decoder, dense, gqa
from simserve.model.readers.spans import FULL, spans, window
from simserve.model.spec import ModelSpec


@READERS.register("gemma")
@READERS.register("GemmaForCausalLM")
def read_gemma(config: Config, name: str) -> ModelSpec:
    """Read Gemma 1, whose layers see everything."""
    config.require("attention_bias", False, "biases of this attention are not modelled")
    layers = config.size("num_hidden_layers")
    return decoder(config, name, [((gqa(config),), (dense(config),))] * layers, tied=True)


@READERS.register("gemma2")
@READERS.register("Gemma2ForCausalLM")
def read_gemma2(config: Config, name: str) -> ModelSpec:
    """Read Gemma 2: layers 0, 2, 4 ... slide, unless `layer_types` lists them."""
    config.require("attention_bias", False, "biases of this attention are not modelled")
    config.ignore(
        "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "cache_implementation"
    )
    if config.has("layer_types"):
        reach = spans(config)
    else:
        local = window(config.size("sliding_window"))
        reach = [FULL if layer % 2 else local for layer in range(config.size("num_hidden_layers"))]
    ffn = dense(config)
    kinds: list[Layer] = [((gqa(config, **span),), (ffn,)) for span in reach]
    return decoder(config, name, kinds, tied=True)
