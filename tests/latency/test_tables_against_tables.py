"""Predictions from the shipped tables against tables measured by others, or measured as one block.

InferSim's H800 rows (same chip as H100, other kernels), and whole MLA blocks of vLLM on H200, whose glue
was found on H100. What is asserted is agreement where work, not launching, decides.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from simserve.core.operation import Operation
from simserve.hardware import load_gpu
from simserve.latency import shipped_profiles
from simserve.latency.blocks.layers import block_ops
from simserve.latency.blocks.plan import Setting
from simserve.latency.kernels.decode import DecodeAttention
from simserve.latency.kernels.gemm import gemm
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mla import Latent, MlaDecode
from simserve.latency.tables.roofline import peaks_of
from simserve.model import Parallelism, load_model
from simserve.model.dtypes import weight_types
from simserve.model.layers import MlaAttention
from tests.places import SHARED

PACK = SHARED / "kernel_profiles"
pytestmark = pytest.mark.reference("kernel_profiles")


def machine(gpu: str) -> Machine:
    card = load_gpu(gpu)
    return Machine(gpu, peaks_of(card), shipped_profiles(), False, card.sm_arch)


def deepseek() -> MlaAttention:
    attention = load_model("deepseek-v3").layers[0].attentions[0]
    assert isinstance(attention, MlaAttention)
    return attention


def test_products_against_h800():
    rows = pd.read_parquet(PACK / "h800/gemm.parquet").query("m >= 1024")
    h100 = machine("h100_sxm")
    ratio = [
        gemm(h100, "", "fp8_block", int(row.n), int(row.k)).cost(np.array([float(row.m)])).us[0]
        / row.latency_us
        for row in rows.itertuples()
    ]
    assert len(ratio) > 20
    # InferSim times the bare product; ours includes the quantisation of the activations.
    assert 1.0 <= np.median(ratio) <= 1.35


def test_decode_attention_against_h800():
    rows = pd.read_parquet(PACK / "h800/attn_decode.parquet").query("batch * kv_len > 1e5")
    h100 = machine("h100_sxm")
    ratio = []
    for row in rows.itertuples():
        heads = Heads(row.q_heads, row.kv_heads, row.head_dim, 0, "bf16", "bf16")
        predicted = DecodeAttention(h100, heads).one_us(float(row.batch), float(row.kv_len))
        ratio.append(predicted / row.latency_us)
    assert len(ratio) > 100
    assert np.median(ratio) == pytest.approx(1.05, abs=0.04)


def test_absorbed_mla_against_h800():
    rows = pd.read_parquet(PACK / "h800/mla_decode.parquet")
    decode = MlaDecode(machine("h100_sxm"), Latent(deepseek().core(1), "bf16"), "bf16")
    assert decode._grid is not None
    predicted = decode._grid.at(128.0, rows.batch.to_numpy(float), rows.kv_len.to_numpy(float))
    # Their FlashMLA is slower than the TensorRT-LLM kernel of our table.
    assert np.median(rows.latency_us / predicted) == pytest.approx(1.11, abs=0.03)


@pytest.mark.parametrize("dtype", ["bf16", "fp8_block"])
def test_whole_mla_blocks_on_h200(dtype):
    rows = pd.read_parquet(PACK / "h200_sxm/mla_block_decode.parquet")
    rows = rows[(rows.gemm_dtype == dtype) & (rows.kv_dtype == "bf16") & (rows.batch <= 256)]
    h200 = machine("h200_sxm")
    ratios = []
    for (heads, batch), some in rows.groupby(["q_heads", "batch"]):
        attention = replace(deepseek(), num_attention_heads=int(heads))
        latent = Latent(attention.core(1), "bf16")
        setting = Setting(h200, 7168, Parallelism(), weight_types(dtype), "bf16", "uniform", 8)
        block = block_ops(attention.block(setting.shard), setting, Operation.PROJECTIONS)
        parts = [op for op in block if op.name != "norm"]
        linear_us = sum(float(op.cost(np.array([float(batch)])).us[0]) for op in parts)
        core = MlaDecode(h200, latent, dtype).cost(float(batch), some.kv_len.to_numpy(float))
        ratios.append((linear_us + core.us) / some.latency_us.to_numpy())
    error = np.abs(np.concatenate(ratios) - 1)
    assert np.median(error) < 0.08
    assert np.quantile(error, 0.95) < 0.3
