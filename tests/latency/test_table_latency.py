"""The contract of `StepLatency`, kept by what is compiled from tables."""

import numpy as np
import pytest

from simserve.core import Chunk, Request
from simserve.engines.overheads import OVERHEADS
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.errors import ProfileError, ScenarioError
from simserve.hardware import load_gpu
from simserve.latency import PAGE, PROVENANCE, TableLatency, compile_step_latency, shipped_profiles
from simserve.latency.overhead import IDEAL, EngineOverhead
from simserve.model import Parallelism, load_model


def chunk(tokens: int, cached: int = 0, last: bool = True) -> Chunk:
    return Chunk(Request(0, 0, tokens, 1), tokens, cached, last)


def compiled(model: str = "llama-3.1-8b", gpu: str = "h100_sxm", **options) -> TableLatency:
    parallel = Parallelism(**{k: options.pop(k) for k in ("tp", "pp", "dp", "ep") if k in options})
    return compile_step_latency(load_model(model), load_gpu(gpu), parallel, **({"overhead": VLLM} | options))


@pytest.mark.parametrize(
    "overhead", [*OVERHEADS.values(), EngineOverhead("sum", 300.0, 5.0, 7.0, False, 11.0)]
)
@pytest.mark.parametrize(("sequences", "page"), [(1, 0), (3, 1), (64, 0), (257, 2), (700, 1)])
def test_pages_equal_steps_to_the_nanosecond(overhead, sequences, page):
    latency = compiled(overhead=overhead)
    times = latency.decode_page(sequences, page)
    assert len(times) == PAGE + 1
    assert times[0] == 0
    for place in (0, 1, 500, 1023):
        mean = page * PAGE + place
        for rest in {0, sequences - 1}:
            step = latency.step_ns(sequences, mean * sequences + rest, ())
            assert times[place + 1] - times[place] == step >= 1


def test_a_measured_product_is_what_the_table_says():
    """Llama-3.1-8B's output projection is 4096 x 4096, and 64 rows of it were measured."""
    rows = shipped_profiles().table("h100_sxm", "gemm").select(dtype="bf16", n=4096, k=4096, m=64)
    ops = {op.name: op for op in compiled(overhead=IDEAL).plan.per_token}
    cost = ops["attention out"].cost(np.array([64.0]))
    assert cost.us[0] == pytest.approx(rows.numbers("latency_us")[0], rel=1e-9)
    assert ops["attention out"].times == 32


def test_decode_attention_is_what_the_table_says_times_layers():
    rows = shipped_profiles().table("h100_sxm", "attn_decode").select(
        q_heads=32, kv_heads=8, head_dim=128, window=0, kv_dtype="bf16", batch=64, kv_len=2048
    )  # fmt: skip
    latency = compiled(overhead=IDEAL)
    spread = latency.step_ns(64, 64 * 2048, ()) - latency.step_ns(64, 64 * 1, ())
    first = latency.plan.attention[0].decode.cost(64, np.array([1.0])).us[0]
    assert spread == pytest.approx(32 * 1000 * (rows.numbers("latency_us")[0] - first), abs=2)


def test_prefill_without_cache_is_what_the_table_says_and_chunks_share_one_call():
    table = shipped_profiles().table("h100_sxm", "attn_prefill").select(
        q_heads=32, kv_heads=8, head_dim=128, window=0, kv_dtype="bf16", q_len=1024
    )  # fmt: skip
    attention = compiled().plan.attention[0]
    for batch in (1, 4):
        measured = table.select(batch=batch).numbers("latency_us")[0]
        assert attention.prefill.chunk_us(batch, 1024, 0)[0] * batch == pytest.approx(measured, rel=1e-9)


def test_more_work_is_never_faster_by_much():
    latency = compiled()
    steps = [latency.step_ns(0, 0, [chunk(n)]) for n in (128, 512, 2048, 8192, 16384, 40000)]
    assert steps == sorted(steps)
    assert latency.step_ns(8, 8 * 4096, [chunk(2048)]) > latency.step_ns(0, 0, [chunk(2048)])


def test_engine_overhead_only_adds():
    ideal, vllm = compiled(overhead=IDEAL), compiled(overhead=VLLM)
    for sequences in (1, 5, 100, 600):
        assert vllm.step_ns(sequences, sequences * 500, ()) >= ideal.step_ns(sequences, sequences * 500, ())


def test_graphs_pad_a_decode_step_to_the_next_captured_size():
    latency = compiled(overhead=EngineOverhead("graphs", capture_sizes=(1, 2, 4, 8, 16)))
    kernels = {op.name: op for op in latency.plan.per_token}
    assert latency.overhead.padded(9) == 16
    nine, sixteen = latency.step_ns(9, 9 * 512, ()), latency.step_ns(16, 16 * 512, ())
    assert kernels
    assert nine <= sixteen


def test_booked_provenance_adds_up_to_the_time():
    latency = compiled(overhead=VLLM)
    latency.forget()
    total = sum(latency.step_ns(n, n * 777, [chunk(100 + n, n)]) for n in range(1, 40))
    booked = latency.step_provenance()
    assert set(booked) == set(PROVENANCE)
    assert sum(booked.values()) == pytest.approx(total, rel=1e-6)
    visits = np.arange(PAGE, dtype=np.int64)
    page = np.diff(np.frombuffer(latency.decode_page(17, 1), np.int64))
    assert sum(latency.decode_provenance(17, 1, visits).values()) == pytest.approx((page * visits).sum())


def test_stages_split_the_model_and_hand_over_activations():
    whole, halves = compiled("llama-3.1-70b", tp=4), compiled("llama-3.1-70b", tp=4, pp=2)
    assert (whole.stages, whole.hop_ns(100)) == (1, 0)
    assert halves.stages == 2
    assert halves.hop_ns(1000) > halves.hop_ns(1) > 0
    ratio = halves.step_ns(256, 256 * 1024, ()) / whole.step_ns(256, 256 * 1024, ())
    assert 0.5 < ratio < 0.6


def test_a_missing_table_is_refused_or_tagged():
    with pytest.raises(ProfileError, match=r"int4.*fp8_block"):
        compiled(weights_dtype="int4", analytic="refuse")
    estimated = compiled(weights_dtype="int4")
    assert any("int4" in note for note in estimated.estimated)
    assert estimated.decode_provenance(8, 0, np.ones(PAGE, np.int64))["analytic"] > 0


@pytest.mark.parametrize("model", ["deepseek-v3", "deepseek-v3.2", "gpt-oss-20b", "longcat-flash", "step-3",
                                   "qwen3.5-397b-a17b", "llama-4-scout", "mixtral-8x7b"])  # fmt: skip
@pytest.mark.parametrize("gpu", ["h100_sxm", "rtx_4090"])
def test_every_kind_of_layer_compiles_and_prices_prompts_alike_one_by_one_and_at_once(model, gpu):
    latency = compiled(model, gpu, tp=8)
    for layers in latency.plan.attention:
        lengths = np.array([1.0, 7, 300, 2048, 5000])
        for batch in (1, 3, 8):
            at_once = layers.prefill.fresh(batch, lengths)
            one_by_one = [layers.prefill.chunk_us(batch, int(new), 0) for new in lengths]
            assert at_once.us == pytest.approx([us for us, _ in one_by_one], rel=1e-9)
            assert at_once.tags.tolist() == [tag for _, tag in one_by_one]
    mixed = latency.step_ns(5, 5 * 3000, [chunk(64, 4096), chunk(300)])
    assert mixed > latency.step_ns(5, 5 * 3000, ())
    page = np.diff(np.frombuffer(latency.decode_page(5, 2), np.int64))
    assert (page > 0).all()


@pytest.mark.parametrize(
    "gpu", ["a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "l40s", "rtx_pro_6000", "h20"]
)
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp16", "fp8", "int8", "int4"])
@pytest.mark.parametrize("model", ["llama-3.1-70b", "gpt-oss-20b", "deepseek-v3"])
def test_every_gpu_and_cache_dtype_compiles(gpu, kv_dtype, model):
    latency = compiled(model, gpu, tp=8, kv_dtype=kv_dtype)
    steps = [latency.step_ns(n, n * 4096, ()) for n in (1, 8, 64)]
    # Measured small batches differ by noise: one sequence may take a little longer than eight.
    assert steps[2] > steps[1] > 0.9 * steps[0]
    assert latency.step_ns(8, 8 * 4096, [chunk(100, 1000)]) > steps[1]


def test_mistakes_are_named():
    with pytest.raises(ScenarioError, match="bf17"):
        compiled(weights_dtype="bf17")
    with pytest.raises(ScenarioError, match=r"tp = 5 does not divide the 32 attention heads"):
        compiled(tp=5)
    with pytest.raises(ScenarioError, match="pp = 33"):
        compiled(pp=33)
