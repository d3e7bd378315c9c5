"""GLM-4.5 and its kind: grouped-query attention, dense first layers, then routed experts and a shared one."""

from __future__ import annotations

from simserve.model.layers import LinearAttention, MoeFfn
from simserve.model.readers.base import READERS, Config, Layer, decoder, dense, gqa, spans
from simserve.model.spec import ModelSpec

# Mixtral, Qwen 3 MoE and MiniMax M2: grouped-query attention and routed experts, no shared one.


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


# Qwen3-Next and Qwen 3.5 MoE (text): gated delta-rule layers, every fourth layer full attention.
#
# Shapes follow transformers' Qwen3-Next and Qwen3.5 gated delta net: one projection to q, k, v, one to the
# gate, two small ones, a short convolution, and a state of value heads x key size x value size in the
# type `mamba_ssm_dtype`. The full layers gate their output. Images and the MTP layer are not modelled.

_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CONVOLUTION_BYTES = 2


@READERS.register("qwen3_next")
@READERS.register("Qwen3NextForCausalLM")
@READERS.register("qwen3_5_moe")
@READERS.register("qwen3_5_moe_text")
@READERS.register("Qwen3_5MoeForConditionalGeneration")
@READERS.register("Qwen3_5MoeForCausalLM")
def read_qwen35_moe(config: Config, name: str) -> ModelSpec:
    """Read Qwen3-Next and the text model of Qwen 3.5 MoE."""
    config.require("decoder_sparse_step", 1, "dense layers in this family are not modelled")
    config.ignore("intermediate_size", "mtp_use_dedicated_embeddings")
    config.require("mlp_only_layers", [], "dense layers in this family are not modelled")
    layer_count = config.size("num_hidden_layers")
    every = config.size("full_attention_interval", 4)
    kinds = ["linear_attention" if layer % every else "full_attention" for layer in range(1, layer_count + 1)]
    if config.has("layer_types"):
        kinds = config.words("layer_types", ["linear_attention", "full_attention"], layer_count)
    gate = config.flag("attn_output_gate", True)
    bias = config.flag("attention_bias", False)
    shared = config.count("shared_expert_intermediate_size", 0)
    moe = MoeFfn(
        n_routed_experts=config.size("num_experts"),
        num_experts_per_tok=config.size("num_experts_per_tok"),
        moe_intermediate_size=config.size("moe_intermediate_size"),
        n_shared_experts=1 if shared else 0,
        shared_intermediate_size=shared,
        shared_gate=bool(shared),
    )
    full = gqa(config, qk_norm=True, output_gate=gate, bias=bias, output_bias=bias)
    linear = _delta_net(config)
    layers: list[Layer] = [((linear if kind == "linear_attention" else full,), (moe,)) for kind in kinds]
    config.ignore("mtp_num_hidden_layers")
    return decoder(config, name, layers)


def _delta_net(config: Config) -> LinearAttention:
    key_dim = config.size("linear_key_head_dim")
    value_heads, value_dim = config.size("linear_num_value_heads"), config.size("linear_value_head_dim")
    keys, values = config.size("linear_num_key_heads") * key_dim, value_heads * value_dim
    kernel = config.size("linear_conv_kernel_dim")
    mixed = 2 * keys + values
    hidden = config.size("hidden_size")
    state_dtype = config.word("mamba_ssm_dtype", _STATE_BYTES, "float32")
    return LinearAttention(
        num_attention_heads=value_heads,
        head_dim=value_dim,
        state_bytes=value_heads * key_dim * value_dim * _STATE_BYTES[state_dtype]
        + mixed * (kernel - 1) * _CONVOLUTION_BYTES,
        params=hidden * (mixed + values + 2 * value_heads)
        + mixed * kernel
        + values * hidden
        + 2 * value_heads,
    )


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
