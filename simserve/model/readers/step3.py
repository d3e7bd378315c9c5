"""Step-3 (text): multi-matrix factorised attention, one KV head of 256, and MoE in the listed layers.

The queries pass a low-rank projection of `share_q_dim`; the single key-value head is shared by all.
"""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, decoder, dense
from simserve.model.spec import GqaAttention, ModelSpec, MoeFfn


@READERS.register("step3_text")
@READERS.register("step3_vl")
@READERS.register("Step3TextForCausalLM")
@READERS.register("Step3VLForConditionalGeneration")
def read_step3(config: Config, name: str) -> ModelSpec:
    """Read the text model of Step-3."""
    config.require("moe_every_n_layer", 1, "the layers must be listed in 'moe_layers_enum'")
    config.ignore("norm_expert_weight", "max_seq_len", "moe_layer_offset")
    attention = GqaAttention(
        num_attention_heads=config.size("num_attention_heads"),
        num_key_value_heads=config.size("num_attention_groups"),
        head_dim=config.size("head_dim"),
        q_lora_rank=config.size("share_q_dim"),
    )
    shared = config.count("share_expert_dim", 0)
    moe = MoeFfn(
        n_routed_experts=config.size("moe_num_experts"),
        num_experts_per_tok=config.size("moe_top_k"),
        moe_intermediate_size=config.size("moe_intermediate_size"),
        n_shared_experts=1 if shared else 0,
        shared_intermediate_size=shared,
    )
    ffn = dense(config)
    routed = set(config.counts("moe_layers_enum"))
    layers = range(config.size("num_hidden_layers"))
    return decoder(config, name, [((attention,), (moe if i in routed else ffn,)) for i in layers])
