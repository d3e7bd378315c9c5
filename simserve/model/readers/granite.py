"""Granite 3: the shape of Llama with factors on embedding, attention, residual and logits; dense or MoE.

Granite 4 mixes in Mamba layers and is not modelled.
"""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, decoder, dense, gqa
from simserve.model.spec import Ffn, ModelSpec, MoeFfn


@READERS.register("granite")
@READERS.register("GraniteForCausalLM")
def read_granite(config: Config, name: str) -> ModelSpec:
    """Read the dense Granite models."""
    return _read(config, name, dense(config, bias=config.flag("mlp_bias", False)))


@READERS.register("granitemoe")
@READERS.register("GraniteMoeForCausalLM")
def read_granite_moe(config: Config, name: str) -> ModelSpec:
    """Read Granite MoE, whose experts are as wide as `intermediate_size`."""
    moe = MoeFfn(
        config.size("num_local_experts"), config.size("num_experts_per_tok"), config.size("intermediate_size")
    )
    return _read(config, name, moe)


def _read(config: Config, name: str, ffn: Ffn) -> ModelSpec:
    config.ignore("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    bias = config.flag("attention_bias", False)
    attention = gqa(config, bias=bias, output_bias=bias)
    return decoder(config, name, [((attention,), (ffn,))] * config.size("num_hidden_layers"), tied=True)
