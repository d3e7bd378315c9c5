"""Gemma 1 and 2: wide heads, a gated MLP, and a head that shares the embedding.

Of Gemma 2 every other layer, the first among them, slides over a window. Left out: soft caps of scores and
logits (no memory, and little time), and two of the four norms of a layer of Gemma 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simserve.model.readers.base import FULL, READERS, Config, Layer, decoder, dense, gqa, spans, window
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


# Gemma 3 (text): five layers with a sliding window, then one that sees everything; query and key norms.
#
# The head shares the embedding; the MLP is gated (GeGLU). Left out: two of the four norms of a layer (a
# parameter per hidden value each). Positions of full layers are scaled by 8 (4B and larger), for which vLLM
# keeps 8 times as long a table.

_SCALE = 8
"""Linear scaling of the models of 128 Ki tokens (config of google/gemma-3-27b-it)."""
_UNSCALED = 32768
"""Longest context of the one that is not scaled (1B)."""


@READERS.register("gemma3")
@READERS.register("gemma3_text")
@READERS.register("Gemma3ForConditionalGeneration")
@READERS.register("Gemma3ForCausalLM")
def read_gemma3(config: Config, name: str) -> ModelSpec:
    """Read Gemma 3: every `sliding_window_pattern`-th layer is full, unless `layer_types` lists them."""
    config.require("attention_bias", False, "biases of this attention are not modelled")
    config.require("attn_logit_softcapping", None, "soft caps of scores are not modelled")
    config.require("final_logit_softcapping", None, "soft caps of logits are not modelled")
    config.require("use_bidirectional_attention", False, "only causal attention is modelled")
    config.ignore(
        "query_pre_attn_scalar", "rope_local_base_freq", "mm_tokens_per_image", "cache_implementation"
    )
    every = config.size("sliding_window_pattern", 6)
    if config.has("layer_types"):
        reach = spans(config)
    else:
        local = window(config.size("sliding_window"))
        layers = range(1, config.size("num_hidden_layers") + 1)
        reach = [local if layer % every else FULL for layer in layers]
    ffn = dense(config)
    kinds: list[Layer] = [((gqa(config, qk_norm=True, **span),), (ffn,)) for span in reach]
    spec = decoder(config, name, kinds, tied=True)
    longest = spec.max_position_embeddings
    scaled = _scale(config) * longest if longest > _UNSCALED else longest
    return replace(spec, rotary_values=config.size("head_dim") * (longest + scaled))


def _scale(config: Config) -> int:
    """Return by how much the positions of full layers are scaled: what the file says, else 8."""
    scaling = config.optional("rope_scaling")
    factor = scaling.get("factor") if isinstance(scaling, Mapping) else None
    return int(factor) if isinstance(factor, int | float) else _SCALE
