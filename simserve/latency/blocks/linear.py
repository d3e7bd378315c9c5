"""Linear attention: a state of constant size per sequence instead of a KV cache. No table; estimated."""

from __future__ import annotations

from simserve.latency.blocks.plan import AttentionLayers, Plan, Setting
from simserve.latency.kernels.gemm import elementwise
from simserve.latency.kernels.prefill import EstimatedAttention
from simserve.latency.tables.roofline import BYTES
from simserve.model.parts import attention_parts
from simserve.model.spec import LinearAttention


def add_linear(plan: Plan, attention: LinearAttention, setting: Setting, times: int) -> None:
    """Add `times` layers: projections as one product of equal size, the state read and written per token."""
    setting.machine.missing("linear_attention", "linear attention")
    norm = elementwise(setting.machine, "norm", 4 * setting.hidden * BYTES[setting.activation_dtype])
    plan.add([norm, *setting.gemms(attention_parts(attention, setting.hidden)).values()], times)
    state = attention.state_bytes / setting.parallel.tp
    kernel = EstimatedAttention(
        setting.machine, 0.0, 0.0, 2.0 * state, setting.activation_dtype, flops_per_query=2.0 * state
    )
    plan.attention.append(AttentionLayers("linear attention", kernel, kernel, times))
