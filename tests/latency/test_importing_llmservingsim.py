"""Layer times of LLMServingSim's profiler as profile tables."""

from __future__ import annotations

import pytest
from extra_profiles import FOLDER, needs_extra, read_extra

from simserve.core import Chunk, Request
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.errors import ProfileError
from simserve.hardware import load_gpu
from simserve.latency import ProfileStore, compile_step_latency
from simserve.latency.explain import explain_step
from simserve.latency.importing.llmservingsim import import_llmservingsim
from simserve.model import load_model
from simserve.model.spec import Parallelism

NAME = "rtx4090_llama-3.1-8b_tp1"


@needs_extra
def test_measured_times_come_back(tmp_path):
    done = {op: rows for _, op, rows in import_llmservingsim(FOLDER, tmp_path, ["rtx_4090"])}
    assert set(done) == {"attn_decode", "attn_prefill", "attn_mixed", "elementwise", "gemm"}
    store = ProfileStore([tmp_path], shipped=False)
    dense = read_extra(f"{NAME}_dense")
    # Llama-3.1-8B: 32 query and 8 KV heads of 128, MLP of 14336 gated, hidden size 4096, 128256 words
    products = {"qkv_proj": (6144, 4096), "gate_up_proj": (28672, 4096), "down_proj": (4096, 14336)}
    for layer, (n, k) in products.items():
        found = store.table("rtx_4090", "gemm").select(n=n, k=k, m=16)  # type: ignore[union-attr]
        wanted = dense[(dense.layer == layer) & (dense.tokens == 16)].time_us
        assert found.numbers("latency_us").tolist() == pytest.approx(wanted.tolist())
    decode = store.table("rtx_4090", "attn_decode").select(batch=32, kv_len=1024)  # type: ignore[union-attr]
    attention = read_extra(f"{NAME}_attention")
    alone = attention[(attention.prefill_chunk == 0) & (attention.n_decode == 32)]
    wanted = alone[alone.kv_decode == 1024].time_us
    assert decode.numbers("latency_us").tolist() == pytest.approx(wanted.tolist())
    head = read_extra(f"{NAME}_per_sequence")
    found = store.table("rtx_4090", "gemm").select(n=128256, k=4096, m=8)  # type: ignore[union-attr]
    assert found.numbers("latency_us")[0] == pytest.approx(
        head[(head.layer == "lm_head") & (head.sequences == 8)].time_us.iloc[0]
    )


@needs_extra
def test_steps_of_measured_parts_take_what_was_measured(tmp_path):
    """A chunk on a cached prefix, decodes beside it, and the kernels that only move memory."""
    list(import_llmservingsim(FOLDER, tmp_path, ["rtx_4090"]))
    latency = compile_step_latency(
        load_model("llama-3.1-8b"),
        load_gpu("rtx_4090"),
        Parallelism(),
        profiles=ProfileStore([tmp_path]),
        overhead=VLLM,
    )
    rows = read_extra(f"{NAME}_attention")
    shape = (rows.prefill_chunk == 256) & (rows.kv_prefill == 1024)
    alone_us = rows[shape & (rows.n_decode == 0)].time_us.iloc[0]
    beside = shape & (rows.n_decode == 32) & (rows.kv_decode == 1024)
    mixed_us = rows[beside].time_us.iloc[0]
    chunk = [Chunk(Request(0, 0, 1280, 1), 256, 1024, True)]
    names = [(part.name, part.us / 32) for part in explain_step(latency, 32, 32 * 1024, chunk)]
    attention = dict(name for name in names if name[0].startswith("attention, "))
    assert attention["attention, prefill"] == pytest.approx(alone_us, rel=1e-3)
    assert sum(attention.values()) == pytest.approx(mixed_us, rel=1e-3)
    dense = read_extra(f"{NAME}_dense")
    wanted = dense[(dense.layer == "act_fn") & (dense.tokens == 288)].time_us.iloc[0]
    assert dict(names)["MLP activation"] == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("readme.txt", "", "no files of LLMServingSim"),
        ("rtx4090_llama-3.1-8b_tp1_dense.csv", "layer,tokens\nqkv_proj,1\n", "lacks the column 'time_us'"),
        ("rtx4090_llama-3.1-8b_tp1_dense.csv", "layer,tokens,time_us\nqkv_proj,1,0\n", "row 2 has time_us 0"),
        ("rtx4091_llama-3.1-8b_tp1_dense.csv", "layer,tokens,time_us\n", "unknown GPU 'rtx4091'.*rtx4090"),
    ],
)
def test_bad_files_are_refused(tmp_path, name, text, complaint):
    (tmp_path / name).write_text(text)
    with pytest.raises(ProfileError, match=complaint):
        list(import_llmservingsim(tmp_path, tmp_path / "out", []))
