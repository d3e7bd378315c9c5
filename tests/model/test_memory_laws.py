"""Laws of the memory ledger that hold for every preset, degree and format."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simserve.hardware import load_gpu
from simserve.model import Parallelism, load_model, memory_rules, preset_names, total_params
from simserve.model.ledger import MemoryLedger, MemorySettings, raw_ledger
from simserve.policy.presets import ENGINES

NOT_PARAMETERS = {"outside the share", "activation peak", "other", "CUDA graphs", "KV cache", "rotary tables"}


def _settings(model: str, dtype: str = "bf16", tp: int = 1, engine: str = "vllm-0.33") -> MemorySettings:
    return MemorySettings(
        load_model(model), load_gpu("h100_sxm"), Parallelism(tp=tp), dtype, "bf16", 16, 0.9, 8192, 256,
        memory_rules(engine),
    )  # fmt: skip


def _weights(ledger: MemoryLedger) -> int:
    return sum(line.bytes for line in ledger.lines if line.name not in NOT_PARAMETERS)


@pytest.mark.parametrize("model", preset_names())
def test_weights_are_parameters_times_bytes_on_one_gpu(model: str) -> None:
    """2 bytes a parameter in 16 bit and 4 in 32; with tp, no GPU has less than its part or more than all."""
    spec = load_model(model)
    whole = 2 * total_params(spec)
    if spec.vision is not None:
        whole += 2 * (spec.vision.params + spec.vision.projector_params)
    assert _weights(raw_ledger(_settings(model))) == pytest.approx(whole, rel=1e-6)
    assert _weights(raw_ledger(_settings(model, "fp32"))) == pytest.approx(2 * whole, rel=1e-6)
    spread = _weights(raw_ledger(_settings(model, tp=2)))
    assert whole / 2 <= spread * (1 + 1e-6)
    assert spread < whole


@pytest.mark.parametrize("engine", [name for name in ENGINES if name.startswith(("vllm", "sglang"))])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-3-4b"])
def test_more_slots_and_tokens_never_leave_more_and_a_larger_share_does(model: str, engine: str) -> None:
    base = _settings(model, engine=engine)
    by_slots = [raw_ledger(replace(base, max_num_seqs=n)).kv_bytes for n in (1, 64, 256, 1024)]
    by_tokens = [raw_ledger(replace(base, max_num_batched_tokens=n)).kv_bytes for n in (1024, 4096, 32768)]
    by_share = [raw_ledger(replace(base, gpu_memory_utilization=u)).kv_bytes for u in (0.5, 0.9, 0.95)]
    assert by_slots == sorted(by_slots, reverse=True)
    assert by_tokens == sorted(by_tokens, reverse=True)
    assert by_share == sorted(set(by_share))
    shared = base.gpu.hbm_bytes  # SGLang's share is of what the CUDA context leaves
    if engine.startswith("sglang"):
        shared -= 0.51 * (1 << 30)
    assert by_share[1] - by_share[0] == pytest.approx(0.4 * shared, abs=4)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b", "deepseek-v3"])
@pytest.mark.parametrize("tp", [1, 8])
def test_lines_add_up_to_the_gpu(model: str, tp: int) -> None:
    ledger = raw_ledger(_settings(model, tp=tp))
    assert sum(line.bytes for line in ledger.lines) == load_gpu("h100_sxm").hbm_bytes
