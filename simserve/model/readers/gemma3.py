"""Gemma 3 (text): five layers with a sliding window, then one that sees everything; query and key norms.

The head shares the embedding; the MLP is gated (GeGLU). Left out: the vision tower, and two of the four norms
of a layer (a parameter per hidden value each).
"""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, Layer, decoder, dense, gqa
from simserve.model.readers.spans import FULL, spans, window
from simserve.model.spec import ModelSpec


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
    return decoder(config, name, kinds, tied=True)
