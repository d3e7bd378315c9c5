"""Attention blocks with a KV cache of heads: MHA, MQA, GQA, windows, chunks, and the factorised query of MFA.

Tensor parallelism splits heads (KV heads are copied once there are fewer than ranks); one all-reduce follows
the output projection.
"""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.latency.blocks.plan import AttentionLayers, Plan, Setting
from simserve.latency.costs import LinearOp
from simserve.latency.kernels.attention import DecodeAttention
from simserve.latency.kernels.collective import all_reduce
from simserve.latency.kernels.elementwise import elementwise
from simserve.latency.kernels.gemm import gemm
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.mixed import measured_mixes
from simserve.latency.kernels.prefill import PrefillAttention
from simserve.latency.roofline import BYTES
from simserve.model.spec import GqaAttention


def add_gqa(plan: Plan, attention: GqaAttention, setting: Setting, times: int) -> None:
    """Add `times` layers of this attention to the plan."""
    heads = local_heads(attention, setting)
    plan.add(_linear_ops(attention, heads, setting), times)
    decode = DecodeAttention(setting.machine, heads)
    prefill = PrefillAttention(setting.machine, heads, decode)
    name = "attention" if attention.span == "full" else f"attention ({attention.span} {heads.window})"
    mixes = None if heads.chunked else measured_mixes(setting.machine, heads, prefill.mixed_ruled_us)
    tail = prefill.tail(setting.max_model_len) if setting.machine.engine == "vllm" else None
    plan.attention.append(AttentionLayers(name, decode, prefill, times, mixes, tail))


def local_heads(attention: GqaAttention, setting: Setting) -> Heads:
    """Return the attention shape of one GPU. Raises `ScenarioError` if TP does not divide the heads."""
    tp = setting.parallel.tp
    if attention.num_attention_heads % tp:
        raise ScenarioError(f"tp: {tp} does not divide {attention.num_attention_heads} attention heads")
    return Heads(
        q_heads=attention.num_attention_heads // tp,
        kv_heads=max(1, attention.num_key_value_heads // tp),
        head_dim=attention.head_dim,
        window=attention.span_tokens if attention.span != "full" else 0,
        dtype=setting.activation_dtype,
        kv_dtype=setting.kv_dtype,
        chunked=attention.span == "chunked",
    )


def _linear_ops(attention: GqaAttention, heads: Heads, setting: Setting) -> list[LinearOp]:
    machine, hidden, dtype = setting.machine, setting.hidden, setting.weights_dtype
    width = BYTES[setting.activation_dtype]
    q_size, kv_size = heads.q_heads * heads.head_dim, heads.kv_heads * heads.head_dim
    ops = [elementwise(machine, "norm", 4 * hidden * width)]
    if attention.q_lora_rank:
        rank = attention.q_lora_rank
        ops.append(gemm(machine, "qkv down", dtype, rank + 2 * kv_size, hidden))
        ops.append(elementwise(machine, "q norm", 2 * rank * width))
        ops.append(gemm(machine, "q up", dtype, q_size, rank))
    else:
        ops.append(gemm(machine, "qkv", dtype, q_size + 2 * kv_size, hidden))
    if attention.qk_norm:
        ops.append(elementwise(machine, "qk norm", 2 * (q_size + kv_size) * width))
    written = 2 * kv_size * (width + BYTES[setting.kv_dtype])
    ops.append(elementwise(machine, "rotary + KV write", 2 * (q_size + kv_size) * width + written))
    ops.append(gemm(machine, "attention out", dtype, hidden, q_size))
    if setting.parallel.tp > 1:
        ops.append(all_reduce(machine, "attention all-reduce", setting.parallel.tp, hidden * width))
    return ops
