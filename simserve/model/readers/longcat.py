"""LongCat-Flash: blocks of two latent attentions, two dense MLPs and one MoE with zero-cost experts.

Follows the shortcut-connected block of the LongCat-Flash report (arXiv 2509.01322, Sep 2025).
"""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, decoder, mla
from simserve.model.spec import DenseFfn, ModelSpec, MoeFfn


@READERS.register("longcat_flash")
@READERS.register("LongcatFlashForCausalLM")
def read_longcat(config: Config, name: str) -> ModelSpec:
    """Read LongCat-Flash; `num_layers` counts blocks."""
    config.require("zero_expert_type", "identity", "other zero experts are not modelled")
    config.require("attention_bias", False, "biases of latent attention are not modelled")
    config.require("attention_method", "MLA", "only latent attention is modelled")
    config.ignore("mla_scale_q_lora", "mla_scale_kv_lora", "router_bias", "num_hidden_layers", "router_dtype")
    attention = mla(config)
    mlp = DenseFfn(config.size("ffn_hidden_size"))
    moe = MoeFfn(
        n_routed_experts=config.size("n_routed_experts"),
        num_experts_per_tok=config.size("moe_topk"),
        moe_intermediate_size=config.size("expert_ffn_hidden_size"),
        zero_experts=config.count("zero_expert_num", 0),
    )
    block = ((attention, attention), (mlp, mlp, moe))
    return decoder(config, name, [block] * config.size("num_layers"))
