"""Attention blocks with a KV cache of heads: MHA, MQA, GQA, windows, chunks, and the factorised query of MFA.

Tensor parallelism splits heads (KV heads are copied once there are fewer than ranks); one all-reduce follows
the output projection.
"""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.latency.blocks.plan import AttentionLayers, Plan, Setting, followed
from simserve.latency.kernels.collective import all_reduce
from simserve.latency.kernels.decode import DecodeAttention
from simserve.latency.kernels.gemm import elementwise
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.mixed import measured_mixes
from simserve.latency.kernels.prefill import PrefillAttention
from simserve.latency.tables.roofline import BYTES, LinearOp
from simserve.model.parts import attention_parts
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
    machine, hidden = setting.machine, setting.hidden
    width = BYTES[setting.activation_dtype]
    q_size, kv_size = heads.q_heads * heads.head_dim, heads.kv_heads * heads.head_dim
    written = 2 * kv_size * (width + BYTES[setting.kv_dtype])
    heads_made = [elementwise(machine, "rotary + KV write", 2 * (q_size + kv_size) * width + written)]
    if attention.qk_norm:
        heads_made.insert(0, elementwise(machine, "qk norm", 2 * (q_size + kv_size) * width))
    rank, last = attention.q_lora_rank, []
    after = {"q up" if rank else "qkv": heads_made, "attention out": last}
    if rank:
        after["qkv down"] = [elementwise(machine, "q norm", 2 * rank * width)]
    if setting.parallel.tp > 1:
        last.append(all_reduce(machine, "attention all-reduce", setting.parallel.tp, hidden * width))
    if attention.output_gate:
        heads_made.append(elementwise(machine, "output gate", 3 * q_size * width))
    norm = elementwise(machine, "norm", 4 * hidden * width)
    return [norm, *followed(setting.gemms(attention_parts(attention, hidden)), after)]
