"""DeepSeek V2, V3, R1, V3.2, Kimi K2 and GLM-5: multi-head latent attention, routed and shared experts.

The first `first_k_dense_replace` layers have a dense MLP. V3.2 and GLM-5 add an indexer that
selects `index_topk` keys per query. V4 (compressed attention, hyper-connections) is refused: see `names`.
"""

from __future__ import annotations

from simserve.model.layers import DenseFfn, GqaAttention, LinearAttention, MlaAttention, MoeFfn
from simserve.model.readers.base import READERS, Config, Layer, decoder, dense, mla
from simserve.model.spec import ModelSpec


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
    ffn, moe = dense(config), experts(config)
    return decoder(config, name, [((attention,), (ffn if i < first_dense else moe,)) for i in range(layers)])


def experts(config: Config) -> MoeFfn:
    """Return DeepSeek's routed and shared experts, the shared ones as wide as a routed one each."""
    width = config.size("moe_intermediate_size")
    shared = config.count("n_shared_experts", 0)
    return MoeFfn(
        n_routed_experts=config.size("n_routed_experts"),
        num_experts_per_tok=config.size("num_experts_per_tok"),
        moe_intermediate_size=width,
        n_shared_experts=shared,
        shared_intermediate_size=shared * width,
        n_group=config.size("n_group", 1),
        topk_group=config.size("topk_group", 1),
    )


# LongCat-Flash: blocks of two latent attentions, two dense MLPs and one MoE with zero-cost experts.
#
# Follows the shortcut-connected block of the LongCat-Flash report (arXiv 2509.01322, Sep 2025).


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


# Kimi Linear: layers of Kimi delta attention (KDA) with a constant state, every fourth one latent attention.
#
# Shapes follow the model's published code (moonshotai/Kimi-Linear-48B-A3B, October 2025): queries, keys and
# values of equal width, each through a short convolution; a decay and an output gate of low rank (the head
# size); a state of heads x head size x head size in fp32. The feed-forward blocks are DeepSeek's.

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


# Step-3 (text): multi-matrix factorised attention, one KV head of 256, and MoE in the listed layers.
#
# The queries pass a low-rank projection of `share_q_dim`; the single key-value head is shared by all.


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
