"""The paths for GPUs, on a CPU that stands in for one, and every library's adapter against its documented
interface; only the device and the libraries are stand-ins (see `stand_ins/`), and all numbers are checked."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_ins.flash import flash_attn, vllm_flash_attn
from stand_ins.gpu import Graph, as_gpu
from stand_ins.infer import flashinfer
from stand_ins.latent import flash_mla
from stand_ins.modules import install, module
from stand_ins.products import deep_gemm

from simserve.profiler.case import Case
from simserve.profiler.device import Device
from simserve.profiler.ops import OPS
from simserve.profiler.run import measure_case
from simserve.profiler.shapes import CPU_SIZES, ExpertShape, HeadShape, LatentShape, RowShape, Shapes
from simserve.profiler.timing import measure

SIZES = replace(
    CPU_SIZES,
    tokens=(1, 8, 40, 300),
    batches=(1, 2, 4),
    contexts=(16, 50, 100),
    prompts=(8, 70),
    prefixes=(64, 96),
)
SHAPES = Shapes(
    "bf16", ("bf16",), ("bf16",), SIZES, products=[(256, 128)], plain_products=[(384, 128)],
    heads=[HeadShape(8, 2, 64, 0), HeadShape(4, 4, 64, 48)], latents=[LatentShape(4, 512, 64, 128, 128)],
    experts=[ExpertShape(128, 256, 8, 2, 1)],
    rows=[
        RowShape("add_rmsnorm", 128, 1024), RowShape("silu_mul", 256, 768),
        RowShape("rope_write", 256, 9, 64),
    ],
)  # fmt: skip


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    Graph.replayed = 0
    return as_gpu(monkeypatch)


def cases(op: str, device: Device, shapes: Shapes = SHAPES, backend: str = "torch") -> list[Case]:
    """The first, the last and one in between."""
    every = [case for case in OPS[op].cases(shapes, device) if case.backend == backend]
    assert every, f"no case of {op} by {backend}"
    return [every[0], every[len(every) // 2], every[-1]]


def measured(case: Case, device: Device) -> dict[str, Any]:
    row = measure_case(case, OPS[case.op], device, 0.02)
    assert row["status"] == "ok", row
    assert row["backend"] == case.backend
    return row


PLAIN = (
    "gemm", "attn_decode", "attn_prefill", "attn_mixed", "attn_decode_uneven", "mla_decode", "mla_prefill",
    "mla_bmm", "moe", "moe_counts", "elementwise", "launch",
)  # fmt: skip


@pytest.mark.parametrize("op", PLAIN)
def test_torch_takes_its_paths_for_gpus(gpu: Device, op: str) -> None:
    for case in cases(op, gpu):
        assert measured(case, gpu)["method"] in ("graph", "events")


@pytest.mark.parametrize("op", ["gemm", "attn_decode", "mla_decode", "moe", "elementwise"])
def test_small_kernels_are_replayed_from_a_graph(
    gpu: Device, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in these kernels waits for the GPU, so a graph can hold them: decode runs so in engines."""
    monkeypatch.setattr("simserve.profiler.timing.GRAPH_BELOW_US", 1e9)
    row = measured(cases(op, gpu)[0], gpu)
    assert row["method"] == "graph"
    assert Graph.replayed > 1


def test_a_kernel_that_waits_is_timed_by_events(gpu: Device) -> None:
    x = torch.ones(4)
    assert measure(lambda _: x.sum().item(), 1, gpu, 0.02).method == "events"


def test_experts_of_hopper_run_in_one_grouped_product(gpu: Device) -> None:
    assert measured(cases("moe", gpu)[1], gpu)["kernel"] == "grouped_mm"
    older = replace(gpu, compute_capability=80)
    assert measured(cases("moe", older)[1], older)["kernel"] == "one product per expert"


def test_fp8_is_measured_where_the_device_has_it(gpu: Device) -> None:
    assert gpu.more_weight_dtypes() == ("fp8",)
    assert replace(gpu, compute_capability=80).more_weight_dtypes() == ()
    shapes = replace(SHAPES, weight_dtypes=("fp8",))
    row = measured(cases("gemm", gpu, shapes)[0], gpu)
    assert row["key"]["dtype"] == "fp8"
    assert 1e-3 < row["error"] < 6e-2


FLASH = ("attn_decode", "attn_prefill", "attn_mixed", "attn_decode_uneven")


@pytest.mark.parametrize("op", FLASH)
@pytest.mark.parametrize("backend", ["flash_attn", "vllm", "flashinfer"])
def test_attention_libraries(gpu: Device, monkeypatch: pytest.MonkeyPatch, backend: str, op: str) -> None:
    install_libraries(monkeypatch)
    for case in cases(op, gpu, backend=backend):
        measured(case, gpu)


@pytest.mark.parametrize("backend", ["vllm", "flashinfer"])
def test_attention_libraries_with_an_fp8_cache(
    gpu: Device, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    install_libraries(monkeypatch)
    shapes = replace(SHAPES, kv_dtypes=("fp8",), heads=SHAPES.heads[:1])
    for case in cases("attn_decode", gpu, shapes, backend):
        assert measured(case, gpu)["key"]["kv_dtype"] == "fp8"


@pytest.mark.parametrize("older", [False, True])
def test_flash_mla_in_both_of_its_interfaces(
    gpu: Device, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    install_libraries(monkeypatch, older)
    for case in cases("mla_decode", gpu, backend="flash_mla"):
        measured(case, gpu)


@pytest.mark.parametrize(
    ("op", "backend"), [("mla_decode", "flashinfer"), ("mla_prefill", "flashinfer"), ("mla_prefill", "vllm")]
)
def test_mla_by_other_libraries(gpu: Device, monkeypatch: pytest.MonkeyPatch, op: str, backend: str) -> None:
    install_libraries(monkeypatch)
    for case in cases(op, gpu, backend=backend):
        measured(case, gpu)


@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("op", ["gemm", "moe", "moe_counts"])
def test_deep_gemm(monkeypatch: pytest.MonkeyPatch, op: str, capability: int) -> None:
    """Float scales on Hopper, powers of two on Blackwell; masked for decode, contiguous for prompts."""
    gpu = as_gpu(monkeypatch, capability)
    install(monkeypatch, deep_gemm=deep_gemm(powers_of_two=capability >= 100))
    shapes = replace(SHAPES, weight_dtypes=("fp8_block",))
    kernels = {measured(case, gpu)["kernel"] for case in cases(op, gpu, shapes, "deep_gemm")}
    if op == "moe":
        assert kernels == {"m_grouped_fp8_gemm_nt_masked", "m_grouped_fp8_gemm_nt_contiguous"}


@pytest.mark.parametrize("op", ["gemm", "moe"])
def test_sizes_that_are_no_whole_tiles_are_unsupported(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """Not failed: three such cases are no reason to give the library up."""
    gpu = as_gpu(monkeypatch)
    install(monkeypatch, deep_gemm=deep_gemm(powers_of_two=False))
    experts = [ExpertShape(128, 192, 8, 2, 1)]
    shapes = replace(SHAPES, weight_dtypes=("fp8_block",), products=[(256, 192)], experts=experts)
    for case in cases(op, gpu, shapes, "deep_gemm"):
        row = measure_case(case, OPS[op], gpu, 0.02)
        assert row["status"] == "unsupported", row
        assert row["why"].startswith("fp8_block needs sizes divisible by 128, got weights of ")


def test_an_older_flash_attn_takes_no_fp8_cache(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    install_libraries(monkeypatch, flash_attn_version=2)
    shapes = replace(SHAPES, kv_dtypes=("fp8",), heads=SHAPES.heads[:1])
    for case in cases("attn_decode", gpu, shapes, "vllm"):
        row = measure_case(case, OPS["attn_decode"], gpu, 0.02)
        assert (row["status"], row["why"]) == ("unsupported", "flash-attn 2 takes no fp8 cache")


def test_flex_attention_needs_triton_on_a_gpu(gpu: Device) -> None:
    from simserve.profiler.ops.attention_kernels import flex_missing

    has = importlib.util.find_spec("triton") is not None
    assert flex_missing(gpu) == ("" if has else "it needs triton on a GPU")


TRITON = """
import torch
from simserve.profiler import torch_kernels as plain, triton_kernels as fused
def close(a, b): assert torch.allclose(a, b, atol=1e-5), (a - b).abs().max()
x, r, w = torch.randn(5, 96), torch.randn(5, 96), torch.randn(96)
close(fused.rmsnorm(x, w), plain.rmsnorm(x, w))
for ours, right in zip(fused.add_rmsnorm(x, r, w), plain.add_rmsnorm(x, r, w)): close(ours, right)
wide = torch.randn(3, 5000)
close(fused.silu_mul(wide), plain.silu_mul(wide))
q, angles, rows = torch.randn(5, 3, 64), torch.randn(5, 32), torch.randn(5, 20)
caches, slots = (torch.zeros(9, 20), torch.zeros(9, 20)), torch.tensor([3, 1, 8, 0, 5])
turned = [
    one.rope_write(q, angles.cos(), angles.sin(), rows, cache, slots)
    for one, cache in zip((fused, plain), caches)
]
close(*turned)
assert torch.equal(*caches) and caches[0].any()
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install triton"
)
def test_triton_kernels_compute_what_torch_does() -> None:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", TRITON], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def install_libraries(
    monkeypatch: pytest.MonkeyPatch, older: bool = False, flash_attn_version: int = 3
) -> None:
    """Install a stand-in of every attention library."""
    version = module(get_flash_attn_version=lambda **_: flash_attn_version)
    install(
        monkeypatch, flash_attn=flash_attn(), flashinfer=flashinfer(),
        flash_mla=flash_mla(older), vllm=module(),
        vllm__vllm_flash_attn=vllm_flash_attn(), vllm__v1__attention__backends__fa_utils=version,
    )  # fmt: skip
