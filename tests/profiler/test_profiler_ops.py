"""Each operation on this CPU: right by float64, timed, and refused when wrong, too large or not supported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simserve.profiler.case import Case
from simserve.profiler.device import Device
from simserve.profiler.job import Job, Types
from simserve.profiler.ops import OPS
from simserve.profiler.ops.collective import OverRanks
from simserve.profiler.run import measure_case

MODELS = ["tiny", "tiny-mla-moe"]


def job(*ops: str) -> Job:
    return Job.make("cpu", "cpu", MODELS, list(ops), [1], threads=1)


LOCAL = [name for name, op in OPS.items() if not isinstance(op, OverRanks)]


@pytest.mark.parametrize("op", LOCAL)
def test_every_operation_is_right_and_timed(op: str) -> None:
    made = job(op)
    assert made.cases
    small = sorted(
        made.cases, key=lambda case: (case.level, sum(v for _, v in case.key if isinstance(v, int)))
    )
    for case in [small[0], small[len(small) // 3]]:
        row = measure_case(case, OPS[op], made.device, 0.05)
        assert row["status"] == "ok", row
        assert row["p10_us"] <= row["latency_us"] <= row["p90_us"]
        assert row["n_samples"] >= 3
        assert 0 <= row["error"] < 1e-4


def test_keys_are_those_of_the_table() -> None:
    for case in job().cases:
        assert tuple(name for name, _ in case.key) == OPS[case.op].key_columns


def test_cases_are_unique_and_corners_come_first() -> None:
    cases = job().cases
    assert len({case.id for case in cases}) == len(cases)
    assert [case.level for case in cases] == sorted(case.level for case in cases)
    tokens = [case["m"] for case in cases if case.op == "gemm" and case["n"] == 768]
    assert set(tokens[:2]) == {1, 512}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_other_dtypes_are_checked_within_their_rounding(dtype: str) -> None:
    made = Job.make("cpu", "cpu", ["tiny"], ["gemm", "attn_decode"], [1], Types(dtype), threads=1)
    for op in ("gemm", "attn_decode"):
        case = next(case for case in made.cases if case.op == op)
        row = measure_case(case, OPS[op], made.device, 0.05)
        assert row["status"] == "ok", row
        assert 1e-6 < row["error"] < 2e-2


def first(made: Job) -> Case:
    return made.cases[0]


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    made = job("gemm")
    right = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, w: right(x, w) * 1.01)
    row = measure_case(first(made), OPS["gemm"], made.device, 0.05)
    assert row["status"] == "wrong"
    assert "0.01 against float64, allowed: 0.0001" in row["why"]
    assert "latency_us" not in row


@pytest.mark.parametrize("fault", ["one missing key", "unwritten part"])
def test_a_wrong_attention_is_not_timed(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    from simserve.profiler import torch_kernels

    made = job("attn_decode")
    case = max((c for c in made.cases if c["batch"] == 4), key=lambda c: -c["kv_len"])
    right = torch_kernels.paged_decode

    def faulty(q, k_cache, v_cache, table, lengths, scale, window=0):
        if fault == "one missing key":
            return right(q, k_cache, v_cache, table, lengths - 1, scale, window)
        out = right(q, k_cache, v_cache, table, lengths, scale, window)
        out[-1] = float("nan")
        return out

    monkeypatch.setattr(torch_kernels, "paged_decode", faulty)
    assert measure_case(case, OPS["attn_decode"], made.device, 0.05)["status"] == "wrong"


@pytest.mark.parametrize("right", [True, False])
def test_keys_of_prompts_are_checked(monkeypatch: pytest.MonkeyPatch, right: bool) -> None:
    """The rotary part must come from each token's own row of the cache."""
    from simserve.profiler import torch_kernels

    made = job("mla_bmm")
    case = next(case for case in made.cases if case["stage"] == "keys" and case["tokens"] == 128)
    if not right:
        together = torch_kernels.expanded_keys
        monkeypatch.setattr(torch_kernels, "expanded_keys", lambda a, b, n: together(a, b.roll(1, 0), n))
    row = measure_case(case, OPS["mla_bmm"], made.device, 0.05)
    assert row["status"] == ("ok" if right else "wrong"), row
    assert not right or row["error"] == 0


@pytest.mark.parametrize(("tokens", "copies"), [(1, 8), (512, 1)])
def test_experts_that_are_picked_do_not_stay_in_the_cache(tokens: int, copies: int) -> None:
    """One token reads 2 of 16 experts of 3 x 512 x 384 x 4 bytes: 7.1 times to 33.6 MB; 512 tokens all."""
    made = job("moe")
    device = replace(made.device, cache_bytes=16 * 2**20)
    (case,) = [c for c in made.cases if c["tokens"] == tokens and c["load"] == "balanced"]
    assert OPS["moe"].build(case, device).sets == copies


def test_too_large_a_shape_is_recorded_as_out_of_memory() -> None:
    made = job("gemm")
    key = tuple({**dict(first(made).key), "n": 2**22, "k": 2**22}.items())
    row = measure_case(Case("gemm", key, "torch", 0), OPS["gemm"], made.device, 0.05)
    assert row["status"] == "oom"
    # 4 bytes each: weights of 2^44, one row of x and one of y, 2^22 each.
    assert "needs 70368.78 GB" in row["why"]


def test_what_the_allocator_refuses_is_out_of_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made = job("gemm")
    monkeypatch.setattr(Device, "free_bytes", lambda self: 10**18)
    key = tuple({**dict(first(made).key), "n": 2**23, "k": 2**23}.items())
    row = measure_case(Case("gemm", key, "torch", 0), OPS["gemm"], made.device, 0.05)
    assert row["status"] == "oom"


def test_a_missing_library_is_recorded_as_unsupported() -> None:
    made = job("gemm")
    key = tuple({**dict(first(made).key), "dtype": "fp8_block"}.items())
    row = measure_case(Case("gemm", key, "deep_gemm", 0), OPS["gemm"], made.device, 0.05)
    assert row["status"] == "unsupported"
    assert row["why"] == "needs deep_gemm (package deep-gemm, or vLLM's copy)"


def test_a_part_left_unwritten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that hands out what it found in memory: a right answer may have been there before."""
    import torch

    made = job("gemm")
    case = next(case for case in made.cases if case["m"] == 512)
    right = torch.nn.functional.linear

    def lazy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape[0], w.shape[0])
        out[:-1] = right(x[:-1], w)
        return out

    monkeypatch.setattr(torch.nn.functional, "linear", lazy)
    row = measure_case(case, OPS["gemm"], made.device, 0.05)
    assert row["status"] == "wrong", row


@pytest.mark.parametrize("op", ["attn_decode", "attn_prefill", "mla_decode"])
def test_an_fp8_cache_is_measured_where_asked_for(op: str) -> None:
    made = Job.make("cpu", "cpu", MODELS, [op], [1], Types(kv=("fp32", "fp8")), threads=1, backends=["torch"])
    assert {case["kv_dtype"] for case in made.cases} == {"fp32", "fp8"}
    case = next(case for case in made.cases if case["kv_dtype"] == "fp8")
    row = measure_case(case, OPS[op], made.device, 0.05)
    assert row["status"] == "ok", row
    assert row["key"]["dtype"] == "fp32"


def test_what_a_library_raises_is_noted_and_in_the_end_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A library built for another GPU, say: three failures, then its cases are passed over."""
    from simserve.profiler.ops import attention_kernels

    def broken(*_: object, **__: object) -> None:
        raise TypeError("unexpected keyword argument 'block_mask'")

    monkeypatch.setattr(attention_kernels, "_compiled", lambda: broken)
    made = Job.make("cpu", "cpu", ["tiny"], ["attn_decode"], [1], threads=1, backends=["flex_attention"])
    outcome = made.run(tmp_path, 600)
    assert (outcome.timed, outcome.not_timed, outcome.left) == (0, 3, 0)
    assert outcome.passed_over == len(made.cases) - 3
    assert outcome.given_up == {"flex_attention": "TypeError: unexpected keyword argument 'block_mask'"}


def test_flex_attention_over_a_block_table() -> None:
    """Decode, and prompts on a prefix, compiled for this CPU; skipped where nothing can compile."""
    from simserve.profiler.ops.attention_kernels import flex_missing

    made = Job.make("cpu", "cpu", ["tiny"], ["attn_prefill"], [1], threads=1, backends=["flex_attention"])
    if why := flex_missing(made.device):
        pytest.skip(why)
    case = next(case for case in made.cases if case["prefix_len"] == 256 and case["q_len"] == 32)
    row = measure_case(case, OPS["attn_prefill"], made.device, 0.05)
    assert row["status"] == "ok", row
    assert row["kernel"] == "flex_attention over a block table"


def test_without_a_compiler_one_line_and_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    from simserve.profiler.ops import attention_kernels

    monkeypatch.setattr(attention_kernels, "_cpp_compiler", lambda: None)
    made = Job.make("cpu", "cpu", ["tiny"], ["attn_decode"], [1], threads=1)
    assert {case.backend for case in made.cases} == {"torch"}
    (note,) = made.notes
    assert note.startswith("flex_attention is left out: it needs a C++ compiler")


@pytest.mark.parametrize("op", ["attn_decode_uneven", "attn_mixed", "attn_prefill"])
def test_one_matrix_under_a_mask_is_the_same_attention(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """What transformers' continuous batching computes; only whether it is installed is made up."""
    from simserve.profiler.ops import paged

    known = paged.library
    monkeypatch.setattr(paged, "library", lambda name: object() if name == "transformers" else known(name))
    made = Job.make("cpu", "cpu", ["tiny"], [op], [1], threads=1, backends=["transformers"])
    small = sorted(made.cases, key=lambda case: sum(v for _, v in case.key if isinstance(v, int)))
    for case in (small[0], small[len(small) // 2]):
        row = measure_case(case, OPS[op], made.device, 0.05)
        assert row["status"] == "ok", row
        assert row["error"] < 1e-5
