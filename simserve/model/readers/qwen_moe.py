"""Mixtral, Qwen 3 MoE and MiniMax M2: grouped-query attention and routed experts, no shared one."""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, Layer, decoder, dense, gqa
from simserve.model.readers.spans import spans
from simserve.model.spec import ModelSpec, MoeFfn


@READERS.register("mixtral")
@READERS.register("MixtralForCausalLM")
def read_mixtral(config: Config, name: str) -> ModelSpec:
    """Read Mixtral, whose experts are as wide as `intermediate_size`."""
    moe = MoeFfn(
        config.size("num_local_experts"), config.size("num_experts_per_tok"), config.size("intermediate_size")
    )
    return decoder(config, name, [((gqa(config, **span),), (moe,)) for span in spans(config)])


@READERS.register("qwen3_moe")
@READERS.register("Qwen3MoeForCausalLM")
@READERS.register("qwen3_vl_moe")
@READERS.register("qwen3_vl_moe_text")
@READERS.register("Qwen3VLMoeForConditionalGeneration")
def read_qwen3_moe(config: Config, name: str) -> ModelSpec:
    """Read Qwen 3 MoE: every `decoder_sparse_step`-th layer routes, unless `mlp_only_layers` names it."""
    bias = config.flag("attention_bias", False)
    config.require("use_qk_norm", True, "these models norm their queries and keys")
    config.require("shared_expert_intermediate_size", 0, "a shared expert is not part of this architecture")
    step = config.size("decoder_sparse_step", 1)
    plain = set(config.counts("mlp_only_layers"))
    moe = MoeFfn(
        config.size("num_experts"), config.size("num_experts_per_tok"), config.size("moe_intermediate_size")
    )
    ffn = dense(config)
    layers: list[Layer] = []
    for index, span in enumerate(spans(config)):
        attention = gqa(config, qk_norm=True, bias=bias, output_bias=bias, **span)
        routed = index not in plain and (index + 1) % step == 0
        layers.append(((attention,), (moe if routed else ffn,)))
    return decoder(config, name, layers)


@READERS.register("minimax_m2")
@READERS.register("MiniMaxM2ForCausalLM")
def read_minimax_m2(config: Config, name: str) -> ModelSpec:
    """Read MiniMax M2 to M2.7; the norm over all heads at once counts like one per head."""
    config.require("shared_intermediate_size", 0, "a shared expert is not modelled here")
    config.require(
        "attn_type_list", [1] * config.size("num_hidden_layers"), "only full attention is modelled"
    )
    config.ignore("use_routing_bias", "qk_norm_type", "use_mtp", "mtp_transformer_layers", "num_mtp_modules")
    moe = MoeFfn(
        config.size("num_local_experts"), config.size("num_experts_per_tok"), config.size("intermediate_size")
    )
    attention = gqa(config, qk_norm=config.flag("use_qk_norm", True))
    return decoder(config, name, [((attention,), (moe,))] * config.size("num_hidden_layers"))
