"""GPT-2 and GPT-3: multi-head attention, a two-matrix MLP, biases, learned positions, a tied head."""

from __future__ import annotations

from simserve.model.layers import DenseFfn, GqaAttention, MoeFfn
from simserve.model.readers.base import READERS, Config, decoder, gqa, spans
from simserve.model.spec import LayerGroup, ModelSpec

_MLP_RATIO = 4
"""Width of the MLP over the hidden size where `n_inner` is absent (GPT-2's own default)."""


@READERS.register("gpt2")
@READERS.register("GPT2LMHeadModel")
def read_gpt(config: Config, name: str) -> ModelSpec:
    """Read GPT-2; GPT-3 is written in its field names. GPT-3's sparse layers are taken as dense."""
    hidden = config.size("n_embd")
    heads = config.size("n_head")
    positions = config.size("n_positions")
    attention = GqaAttention(heads, heads, hidden // heads, bias=True, output_bias=True)
    mlp = DenseFfn(config.size("n_inner", _MLP_RATIO * hidden), matrices=2, bias=True)
    return ModelSpec(
        name=name,
        hidden_size=hidden,
        vocab_size=config.size("vocab_size"),
        max_position_embeddings=positions,
        layers=(LayerGroup(config.size("n_layer"), (attention,), (mlp,)),),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        source=config.place,
        learned_positions=positions,
    )


# gpt-oss: every other layer slides over a short window, and every layer has routed experts with biases.


@READERS.register("gpt_oss")
@READERS.register("GptOssForCausalLM")
def read_gpt_oss(config: Config, name: str) -> ModelSpec:
    """Read gpt-oss; `intermediate_size` is the width of an expert."""
    config.ignore("experts_per_token")  # says the same as num_experts_per_tok
    bias = config.flag("attention_bias", True)
    moe = MoeFfn(
        n_routed_experts=config.size("num_local_experts"),
        num_experts_per_tok=config.size("num_experts_per_tok"),
        moe_intermediate_size=config.size("intermediate_size"),
        bias=True,
    )
    settings = {"bias": bias, "output_bias": bias, "sinks": True}
    layers = [((gqa(config, **settings, **span),), (moe,)) for span in spans(config)]
    return decoder(config, name, layers)
