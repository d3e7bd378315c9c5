"""MLA blocks (DeepSeek-V2 and later): low-rank query, one latent per token, absorbed decode, expanded
prefill.

Tensor parallelism splits heads; the latent and the products that make it are the same on every rank. The
query and latent down-projections are one product, as engines fuse them.
"""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.latency.blocks.plan import AttentionLayers, Plan, Setting, followed
from simserve.latency.kernels.collective import all_reduce
from simserve.latency.kernels.gemm import elementwise
from simserve.latency.kernels.mla import Latent, MlaDecode
from simserve.latency.kernels.mla_prefill import MlaPrefill
from simserve.latency.tables.roofline import BYTES, LinearOp
from simserve.model.parts import LATENT_UP, attention_parts
from simserve.model.spec import MlaAttention

HOPPER_GLUE_US = 45.0
"""What an MLA block takes on Hopper beside its products, attention, norms and rotary: copies between the
layouts of its kernels, scheduling metadata, query quantisation (aiconfigurator-core 0.12.0: whole blocks
of vLLM 0.24.0 on H100 less the sum of their parts, 40-60 us up to 64 sequences; 40-55 on H200; about 0 on
B200)."""


def add_mla(plan: Plan, attention: MlaAttention, setting: Setting, times: int) -> None:
    """Add `times` layers of this attention to the plan. Raises `ScenarioError` if TP cannot split heads."""
    tp = setting.parallel.tp
    if attention.num_attention_heads % tp:
        raise ScenarioError(f"tp: {tp} does not divide {attention.num_attention_heads} attention heads")
    latent = Latent(attention.num_attention_heads // tp, attention, setting.kv_dtype)
    plan.add(_linear_ops(latent, setting), times)
    decode = MlaDecode(setting.machine, latent, setting.dtype_of("attention"))
    prefill = MlaPrefill(setting.machine, latent, setting.dtype_of("attention"), decode)
    plan.attention.append(AttentionLayers("MLA attention", decode, prefill, times, products=(prefill.up,)))


def _linear_ops(latent: Latent, setting: Setting) -> list[LinearOp]:
    machine, hidden = setting.machine, setting.hidden
    attention, tp = latent.attention, setting.parallel.tp
    width = BYTES[setting.activation_dtype]
    rank, before, last = attention.q_lora_rank, [], []
    after = {"attention out": last}
    if rank:
        normed = 2 * (rank + latent.width) * width
        after["q and latent down"] = [elementwise(machine, "q and latent norm", normed)]
    if machine.sm_arch == 90:
        before.append(elementwise(machine, "MLA glue", 0.0, start_us=HOPPER_GLUE_US))
    written = latent.width * (width + BYTES[latent.kv_dtype])
    rope = 2 * (latent.heads + 1) * attention.qk_rope_head_dim * width
    before.append(elementwise(machine, "rotary + KV write", rope + written))
    after["q up" if rank else "latent down"] = before
    if tp > 1:
        last.append(all_reduce(machine, "attention all-reduce", tp, hidden * width))
    norm = elementwise(machine, "norm", 4 * hidden * width)
    products = setting.gemms(attention_parts(attention, hidden))
    del products[LATENT_UP]  # attention computes it
    return [norm, *followed(products, after)]
