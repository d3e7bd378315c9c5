"""Laws of the memory ledger that hold for every preset, degree and format."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simserve.engines.presets import PRESETS, memory_rules
from simserve.errors import ScenarioError
from simserve.hardware import load_gpu
from simserve.model import (
    Parallelism,
    check_parallelism,
    load_model,
    preset_names,
    total_params,
)
from simserve.model.dtypes import WeightsDtype, WeightTypes
from simserve.model.layers import Part
from simserve.model.memory import MemoryLedger, raw_ledger
from simserve.model.memory_lines import MemorySettings
from simserve.model.parts import all_parts

NOT_PARAMETERS = {
    "outside the share", "activation peak", "other", "CUDA graphs", "KV cache", "rotary tables",
    "windows in flight", "compressor states",
}  # fmt: skip


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


BYTES = {"bf16": 2, "fp32": 4, "fp8": 1, "int8": 1, "int4": 0.5 + 2 / 128, "nvfp4": 0.5 + 1 / 16}
"""Of a matrix element, scales included: 16 bit for each 128 in int4, 8 bit for each 16 in NVFP4."""
TYPES: list[WeightsDtype] = [
    "bf16", "fp8", "int4", "nvfp4",
    WeightTypes(attention="bf16", dense="fp8", shared_experts="int8", routed_experts="nvfp4", head="bf16"),
]  # fmt: skip
OF_KIND = {
    "attention": "attention",
    "dense_ffn": "dense",
    "shared_expert": "shared_experts",
    "routed_expert": "routed_experts",
}


def _bytes_of(part: Part, tp: int, dtype: WeightsDtype) -> float:
    """What a GPU holds of a part: its share of outputs, inputs, KV heads or experts, in the part's type."""
    cut = {"rows": part.rows, "columns": part.columns}.get(part.split, 0)
    elements = part.params / cut * -(-cut // tp) if cut else float(part.params)
    if part.split == "kv_heads":
        elements = part.params / part.kv_heads * max(1, part.kv_heads / tp)
    if part.split == "experts":
        elements /= tp
    matrix = bool(part.product) and part.kind in OF_KIND
    named = dtype if isinstance(dtype, str) else getattr(dtype, OF_KIND.get(part.kind, "head"))
    return elements * BYTES[named if matrix else "bf16"]


@pytest.mark.parametrize("model", preset_names())
def test_weights_are_the_parts_of_the_checkpoint_at_any_degree_and_type(model: str) -> None:
    spec = load_model(model)
    for tp in (1, 2, 4, 8):
        try:
            check_parallelism(spec, Parallelism(tp=tp))
        except ScenarioError:
            continue
        tower = spec.vision
        image = 2 * (-(-tower.params // tp) + tower.projector_params) if tower else 0
        for dtype in TYPES:
            expected = image + sum(count * _bytes_of(part, tp, dtype) for count, part in all_parts(spec))
            ledger = raw_ledger(replace(_settings(model, tp=tp), weights_dtype=dtype))
            held = sum(line.bytes for line in ledger.lines if line.name == "absorbed attention")
            assert _weights(ledger) - held == pytest.approx(expected, rel=1e-6), (tp, dtype)


@pytest.mark.parametrize(("tp", "gib"), [(1, 1.91), (8, 0.24)])
def test_quantised_latents_are_held_in_16_bit_too(tp: int, gib: float) -> None:
    """DeepSeek-V3: 61 layers x 128 heads x 512 x (128 + 128) x 2 B are copied, over tp; none in 16 bit."""
    ledger = raw_ledger(_settings("deepseek-v3", "fp8_block", tp=tp))
    assert ledger.line("absorbed attention").bytes == 61 * 128 // tp * 512 * 256 * 2
    assert ledger.line("absorbed attention").bytes / (1 << 30) == pytest.approx(gib, abs=0.01)
    assert "absorbed attention" not in {one.name for one in raw_ledger(_settings("deepseek-v3")).lines}


@pytest.mark.parametrize("engine", [name for name in PRESETS if name.startswith(("vllm", "sglang"))])
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
