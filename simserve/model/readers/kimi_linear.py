"""Kimi Linear: layers of Kimi delta attention (KDA) with a constant state, every fourth one latent attention.

Shapes follow the model's published code (moonshotai/Kimi-Linear-48B-A3B, October 2025): queries, keys and
values of equal width, each through a short convolution; a decay and an output gate of low rank (the head
size); a state of heads x head size x head size in fp32. The feed-forward blocks are DeepSeek's.
"""

from __future__ import annotations

from simserve.model.config import Config
from simserve.model.readers.base import READERS, Layer, decoder, dense, mla
from simserve.model.spec import LinearAttention, ModelSpec, MoeFfn

_STATE_BYTES, _CONVOLUTION_BYTES = 4, 2


@READERS.register("kimi_linear")
@READERS.register("KimiLinearForCausalLM")
def read_kimi_linear(config: Config, name: str) -> ModelSpec:
    """Read Kimi Linear; `linear_attn_config` counts its layers from 1."""
    config.require("moe_layer_freq", 1, "only MoE in every layer after the dense ones is modelled")
    config.ignore(
        "moe_renormalize", "moe_router_activation_func", "use_grouped_topk", "mla_use_nope", "head_dim"
    )
    layers = config.size("num_hidden_layers")
    linear = Config(config.mapping("linear_attn_config"), f"{config.place}: linear_attn_config")
    full = set(linear.counts("full_attn_layers"))
    if full | set(linear.counts("kda_layers")) != set(range(1, layers + 1)):
        raise linear.error(
            "full_attn_layers", sorted(full), f"with kda_layers every layer from 1 to {layers}"
        )
    width = config.size("moe_intermediate_size")
    shared = config.count("num_shared_experts", 0)
    moe = MoeFfn(
        n_routed_experts=config.size("num_experts"),
        num_experts_per_tok=config.size("num_experts_per_token"),
        moe_intermediate_size=width,
        n_shared_experts=shared,
        shared_intermediate_size=shared * width,
        n_group=config.size("num_expert_group", 1),
        topk_group=config.size("topk_group", 1),
    )
    latent, delta, ffn = mla(config), _kda(linear, config.size("hidden_size")), dense(config)
    linear.finish()
    first_dense = config.count("first_k_dense_replace", 0)
    kinds: list[Layer] = [
        ((latent if layer in full else delta,), (ffn if layer <= first_dense else moe,))
        for layer in range(1, layers + 1)
    ]
    return decoder(config, name, kinds, length="model_max_length")


def _kda(linear: Config, hidden: int) -> LinearAttention:
    heads, head_dim = linear.size("num_heads"), linear.size("head_dim")
    kernel, width = linear.size("short_conv_kernel_size"), heads * head_dim
    low_rank = 2 * (hidden * head_dim + head_dim * width)  # decay and output gate
    return LinearAttention(
        num_attention_heads=heads,
        head_dim=head_dim,
        state_bytes=heads * head_dim**2 * _STATE_BYTES + 3 * width * (kernel - 1) * _CONVOLUTION_BYTES,
        params=4 * hidden * width + 3 * width * kernel + low_rank + hidden * heads + heads + width + head_dim,
    )
