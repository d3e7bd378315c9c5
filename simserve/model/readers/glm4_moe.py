"""GLM-4.5 and its kind: grouped-query attention, dense first layers, then routed experts and a shared one."""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, decoder, dense, gqa
from simserve.model.spec import ModelSpec, MoeFfn


@READERS.register("glm4_moe")
@READERS.register("Glm4MoeForCausalLM")
def read_glm4_moe(config: Config, name: str) -> ModelSpec:
    """Read GLM-4.5: the first `first_k_dense_replace` layers have a dense MLP, the others route."""
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
    bias = config.flag("attention_bias", False)
    attention = gqa(config, bias=bias, qk_norm=config.flag("use_qk_norm", False))
    ffn = dense(config)
    return decoder(config, name, [((attention,), (ffn if i < first_dense else moe,)) for i in range(layers)])
