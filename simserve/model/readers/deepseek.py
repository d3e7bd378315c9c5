"""DeepSeek V2, V3, R1, V3.2, Kimi K2 and GLM-5: multi-head latent attention, routed and shared experts.

The first `first_k_dense_replace` layers have a dense MLP. V3.2 and GLM-5 add an indexer that
selects `index_topk` keys per query. V4 (compressed attention, hyper-connections) is refused: see `names`.
"""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, decoder, dense, mla
from simserve.model.spec import MlaAttention, ModelSpec, MoeFfn


@READERS.register("deepseek_v2")
@READERS.register("DeepseekV2ForCausalLM")
@READERS.register("deepseek_v3")
@READERS.register("DeepseekV3ForCausalLM")
@READERS.register("kimi_k2")
@READERS.register("kimi_k25")
def read_deepseek(config: Config, name: str) -> ModelSpec:
    """Read DeepSeek V2 and V3, and the models that share their layers."""
    return _read(config, name, mla(config))


@READERS.register("deepseek_v32")
@READERS.register("DeepseekV32ForCausalLM")
@READERS.register("glm_moe_dsa")
@READERS.register("GlmMoeDsaForCausalLM")
def read_deepseek_v32(config: Config, name: str) -> ModelSpec:
    """Read DeepSeek V3.2 and GLM-5, whose attention is sparse."""
    config.ignore("indexer_rope_interleave")
    attention = mla(
        config,
        index_topk=config.size("index_topk"),
        index_n_heads=config.size("index_n_heads"),
        index_head_dim=config.size("index_head_dim"),
    )
    return _read(config, name, attention)


def _read(config: Config, name: str, attention: MlaAttention) -> ModelSpec:
    config.require("moe_layer_freq", 1, "only MoE in every layer after the dense ones is modelled")
    config.require("attention_bias", False, "biases of latent attention are not modelled")
    layers = config.size("num_hidden_layers")
    first_dense = config.count("first_k_dense_replace", 0)
    width = config.size("moe_intermediate_size")
    shared = config.count("n_shared_experts", 0)
    moe = MoeFfn(
        n_routed_experts=config.size("n_routed_experts"),
        num_experts_per_tok=config.size("num_experts_per_tok"),
        moe_intermediate_size=width,
        n_shared_experts=shared,
        shared_intermediate_size=shared * width,
        n_group=config.size("n_group", 1),
        topk_group=config.size("topk_group", 1),
    )
    ffn = dense(config)
    return decoder(config, name, [((attention,), (ffn if i < first_dense else moe,)) for i in range(layers)])
