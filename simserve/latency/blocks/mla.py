"""Multi-head latent attention (DeepSeek-V2): estimated for now."""

from __future__ import annotations

from simserve.latency.blocks.plan import AttentionLayers, Plan, Setting
from simserve.latency.kernels.collective import all_reduce
from simserve.latency.kernels.elementwise import elementwise
from simserve.latency.kernels.estimate import EstimatedAttention
from simserve.latency.kernels.gemm import gemm
from simserve.latency.roofline import BYTES
from simserve.model.spec import MlaAttention


def add_mla(plan: Plan, attention: MlaAttention, setting: Setting, times: int) -> None:
    """Add `times` layers of this attention to the plan."""
    machine, hidden, dtype = setting.machine, setting.hidden, setting.weights_dtype
    width, tp = BYTES[setting.activation_dtype], setting.parallel.tp
    heads = attention.num_attention_heads // tp
    latent = attention.kv_lora_rank + attention.qk_rope_head_dim
    qk = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    ops = [
        elementwise(machine, "norm", 4 * hidden * width),
        gemm(machine, "qkv down", dtype, attention.q_lora_rank + latent, hidden),
        gemm(machine, "q up", dtype, heads * qk, attention.q_lora_rank or hidden),
        gemm(machine, "attention out", dtype, hidden, heads * attention.v_head_dim),
    ]
    if tp > 1:
        ops.append(all_reduce(machine, "attention all-reduce", tp, hidden * width))
    plan.add(ops, times)
    kernel = EstimatedAttention(
        machine,
        flops_per_pair=2.0 * heads * (latent + attention.kv_lora_rank),
        bytes_per_key=latent * BYTES[setting.kv_dtype],
        bytes_per_query=2.0 * heads * (latent + attention.kv_lora_rank),
        dtype="bf16",
        flops_per_query=2.0
        * heads
        * attention.kv_lora_rank
        * (attention.qk_nope_head_dim + attention.v_head_dim),
    )
    plan.attention.append(AttentionLayers("MLA", kernel, kernel, times))
