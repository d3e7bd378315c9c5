"""The kernels of attention itself, by the shape that a kind of layer gives it (`model/layers`)."""

from __future__ import annotations

from functools import singledispatch

from simserve.latency.blocks.plan import AttentionLayers, Setting
from simserve.latency.kernels.compressed import BlockKey, CompressedBlocks
from simserve.latency.kernels.decode import DecodeAttention
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.mixed import measured_mixes
from simserve.latency.kernels.mla import Latent, MlaDecode
from simserve.latency.kernels.mla_prefill import MlaPrefill
from simserve.latency.kernels.prefill import EstimatedAttention, PrefillAttention
from simserve.model.layers import Attention
from simserve.model.layers.compressed import CompressedShape
from simserve.model.layers.gqa import HeadShape
from simserve.model.layers.linear import StateShape
from simserve.model.layers.mla import LatentShape


@singledispatch
def attention_layers(shape: object, attention: Attention, setting: Setting, times: int) -> AttentionLayers:
    """Return `times` layers of attention of this shape. Raises `TypeError` if no kernel has it."""
    raise TypeError(f"no kernel computes attention of a {type(shape).__name__}")


@attention_layers.register
def _(shape: HeadShape, attention: Attention, setting: Setting, times: int) -> AttentionLayers:
    """A KV cache of heads: MHA, GQA, MQA, windows, chunks."""
    heads = Heads(
        q_heads=shape.q_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        window=shape.window,
        dtype=setting.activation_dtype,
        kv_dtype=setting.kv_dtype,
        chunked=shape.chunked,
    )
    decode = DecodeAttention(setting.machine, heads)
    prefill = PrefillAttention(setting.machine, heads, decode)
    mixes = None if heads.chunked else measured_mixes(setting.machine, heads, prefill.mixed_ruled_us)
    tail = prefill.tail(setting.max_model_len) if setting.machine.engine == "vllm" else None
    return AttentionLayers(attention.label, decode, prefill, times, mixes, tail)


@attention_layers.register
def _(shape: LatentShape, attention: Attention, setting: Setting, times: int) -> AttentionLayers:
    """Latents: absorbed for decodes, expanded for prompts."""
    latent, dtype = Latent(shape, setting.kv_dtype), setting.dtype_of("attention")
    decode = MlaDecode(setting.machine, latent, dtype)
    prefill = MlaPrefill(setting.machine, latent, dtype, decode)
    return AttentionLayers(attention.label, decode, prefill, times, products=(prefill.up,))


@attention_layers.register
def _(shape: StateShape, attention: Attention, setting: Setting, times: int) -> AttentionLayers:
    """A constant state, read and written per token. No table; estimated."""
    setting.machine.missing("linear_attention", "linear attention")
    kernel = EstimatedAttention(
        setting.machine,
        0.0,
        0.0,
        2.0 * shape.state_bytes,
        setting.activation_dtype,
        flops_per_query=2.0 * shape.state_bytes,
    )
    return AttentionLayers(attention.label, kernel, kernel, times)


@attention_layers.register
def _(shape: CompressedShape, attention: Attention, setting: Setting, times: int) -> AttentionLayers:
    """A window and compressed tokens: whole blocks, their products included."""
    products = list(setting.gemms(attention.parts(setting.hidden)).values())
    key = BlockKey(setting.hidden, setting.parallel.tp, setting.dtype_of("attention"), setting.kv_dtype)
    kernel = CompressedBlocks(setting.machine, shape, key, products)
    return AttentionLayers(attention.label, kernel, kernel, times, products=tuple(products))
