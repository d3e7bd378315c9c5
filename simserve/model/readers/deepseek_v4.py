"""DeepSeek V4: compressed attention, hyper-connections, and MoE in every layer.

`compress_ratios` has one ratio for each layer, and one more for each layer that predicts tokens. The first
`num_hash_layers` choose experts by a table of the vocabulary instead of scores, at the same cost.
"""

from __future__ import annotations

from simserve.model.dtypes import Checkpoint, WeightTypes
from simserve.model.layers import CompressedAttention, HyperConnections
from simserve.model.layers.compressed import INDEXED_RATIO, RATIOS
from simserve.model.readers.base import READERS, Config, Layer, decoder
from simserve.model.readers.deepseek import experts
from simserve.model.spec import ModelSpec

_EXPERTS = {"fp4": "mxfp4", "nvfp4": "nvfp4"}
"""Types of routed experts: V4 ships them in MXFP4, NVIDIA's releases in NVFP4."""


@READERS.register("deepseek_v4")
@READERS.register("DeepseekV4ForCausalLM")
def read_deepseek_v4(config: Config, name: str) -> ModelSpec:
    """Read DeepSeek V4 Flash and Pro; raises `ScenarioError` for a ratio of another kind."""
    config.require("num_key_value_heads", 1, "compressed attention has one KV head")
    config.require("attention_bias", False, "biases of compressed attention are not modelled")
    config.ignore(
        "hc_eps", "hc_sinkhorn_iters", "num_hash_layers", "compress_rope_theta", "attention_dropout"
    )
    layers = config.size("num_hidden_layers")
    ratios = config.counts("compress_ratios")[:layers]
    if len(ratios) < layers or not set(ratios) <= set(RATIOS):
        allowed = f"one of {', '.join(map(str, RATIOS))} for each of {layers} layers"
        raise config.error("compress_ratios", ratios, allowed)
    attentions = {ratio: _attention(config, ratio) for ratio in RATIOS}
    moe = experts(config)
    kinds: list[Layer] = [((attentions[ratio],), (moe,)) for ratio in ratios]
    routed = _EXPERTS.get(config.text("expert_dtype"))
    fixed = Checkpoint(WeightTypes.model_validate({"routed_experts": routed}), "fp8")
    streams = HyperConnections(config.size("hc_mult"))
    return decoder(config, name, kinds, residual=streams, checkpoint=fixed)


def _attention(config: Config, ratio: int) -> CompressedAttention:
    indexed = ratio == INDEXED_RATIO
    return CompressedAttention(
        num_attention_heads=config.size("num_attention_heads"),
        head_dim=config.size("head_dim"),
        qk_rope_head_dim=config.size("qk_rope_head_dim"),
        q_lora_rank=config.size("q_lora_rank"),
        o_lora_rank=config.size("o_lora_rank"),
        o_groups=config.size("o_groups"),
        window=config.size("sliding_window"),
        ratio=ratio,
        index_topk=config.size("index_topk") if indexed else 0,
        index_n_heads=config.size("index_n_heads") if indexed else 0,
        index_head_dim=config.size("index_head_dim") if indexed else 0,
    )
