"""Layer times of LLMServingSim's profiler as profile tables."""

from __future__ import annotations

import pytest
from extra_profiles import FOLDER, needs_extra, read_extra

from simserve.errors import ProfileError
from simserve.latency import ProfileStore
from simserve.latency.importing.llmservingsim import import_llmservingsim

NAME = "rtx4090_llama-3.1-8b_tp1"


@needs_extra
def test_measured_times_come_back(tmp_path):
    done = {op: rows for _, op, rows in import_llmservingsim(FOLDER, tmp_path, ["rtx_4090"])}
    assert set(done) == {"attn_decode", "attn_prefill", "gemm"}
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
