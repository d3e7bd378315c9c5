"""What a server works out before it starts, by hand from the rules in the wheel of SGLang 0.5.23.

Reserved MiB = 512 + 1.5 a prompt token of a step + 128 a GPU + 2 a sequence of the largest decode graph
+ with attention ranks 3 (above 300 sequences 4.5) a sequence and rank + 8 a prefill graph (MLA: 1,536).
"""

import pytest

from simserve.deploy.engine import placement_of
from simserve.engines.base import Placement
from simserve.engines.presets import engine_preset
from simserve.engines.sglang import SglangParams
from simserve.engines.sglang.options import chunk_tokens, largest_decode_graph, prefill_graphs, static_share
from simserve.errors import ScenarioError
from simserve.hardware import load_gpu
from simserve.model import Parallelism, load_model
from simserve.units import GIB

MIB = 1 << 20
H100, H200, B200 = 80_998, 143_155, 182_630
"""MiB that a process sees."""


@pytest.mark.parametrize(
    ("mib", "placement", "options", "reserved"),
    [
        (16_384, Placement(), {}, 512 + 3072 + 128 + 2 * 8 + 8 * 42),
        (24_207, Placement(), {}, 512 + 6144 + 128 + 2 * 48 + 8 * 50),
        (45_455, Placement(tp=2), {}, 512 + 6144 + 256 + 2 * 32 + 8 * 50),
        (45_455, Placement(tp=4), {}, 512 + 6144 + 512 + 2 * 160 + 8 * 50),
        (H100, Placement(), {}, 512 + 12288 + 128 + 2 * 256 + 8 * 58),
        (H100, Placement(tp=2, pp=2), {}, 512 + 12288 + 512 + 2 * 256),  # no prefill graphs with pp
        (H100, Placement(two_batch=True), {}, 512 + 12288 + 128 + 2 * 256),  # nor with two-batch overlap
        (H100, Placement(tp=8), {}, 512 + 12288 + 1024 + 2 * 512 + 8 * 58),
        (H100, Placement(dp=2), {}, 512 + 12288 + 256 + (2 + 2 * 3) * 256 + 8 * 58),
        (H100, Placement(tp=2, dp=2), {}, 512 + 12288 + 512 + (2 + 2 * 4.5) * 512 + 8 * 58),
        (H100, Placement(), {"chunked_prefill_size": 2048}, 10 * 1024),  # at least 10 GiB
        (H100, Placement(), {"max_running_requests": 100}, 512 + 12288 + 128 + 2 * 100 + 8 * 58),
        (H200, Placement(tp=8, mla=True), {}, 512 + 12288 + 1024 + 2 * 512 + 1536),
        (H200, Placement(dp=8, mla=True), {}, 512 + 12288 + 1024 + (2 + 8 * 4.5) * 512 + 1536),
        (B200, Placement(), {}, 512 + 24576 + 128 + 2 * 512 + 8 * 74),
        (B200, Placement(dp=8, mla=True), {}, 512 + 24576 + 1024 + (2 + 8 * 4.5) * 512 + 1536),
        (B200, Placement(dp=8, mla=True, role="prefill"), {}, 512 + 24576 + 1024 + 1536),
        (B200, Placement(dp=8, mla=True, role="decode"), {}, 512 + 3072 + 1024 + (2 + 8 * 4.5) * 512),
    ],
)
def test_static_share(mib, placement, options, reserved):
    memory = mib * MIB
    settings = {"chunked_prefill_size": chunk_tokens(memory)} | options
    assert static_share(memory, settings, placement) == round(1 - reserved / mib, 3)


def test_the_published_case():
    """DeepSeek-V3 on eight B200 with attention data parallelism."""
    settings = {"chunked_prefill_size": 16384}
    assert static_share(B200 * MIB, settings, Placement(dp=8, mla=True)) == 0.742


@pytest.mark.parametrize(
    ("gib", "chunk", "few", "many"),
    [(16, 2048, 8, 8), (24, 4096, 48, 160), (40, 4096, 32, 160), (80, 8192, 256, 512), (141, 8192, 256, 512),
     (180, 16384, 512, 512)],
)  # fmt: skip
def test_classes_of_memory(gib, chunk, few, many):
    memory = gib * GIB
    assert chunk_tokens(memory) == chunk
    assert [largest_decode_graph(memory, gpus, 4096) for gpus in (1, 3, 4, 8)] == [few, few, many, many]


@pytest.mark.parametrize(
    ("tokens", "graphs"), [(3, 0), (32, 8), (512, 30), (2048, 42), (4096, 50), (8192, 58)]
)
def test_prefill_graphs(tokens, graphs):
    assert prefill_graphs(tokens) == graphs


def test_attention_ranks_share_chunk_and_requests():
    told = SglangParams(chunked_prefill_size=16384, max_running_requests=100, schedule_conservativeness=0.5)
    rank = told.of_rank(8)
    assert rank.chunked_prefill_size == 2048
    assert rank.max_running_requests == 12
    assert rank.schedule_conservativeness == pytest.approx(0.15)
    assert told.of_rank(1) == told
    assert SglangParams(chunked_prefill_size=-1).of_rank(8).chunked_prefill_size == -1
    with pytest.raises(ScenarioError, match=r"chunked_prefill_size = 4 .*; allowed: 8 or more"):
        SglangParams(chunked_prefill_size=4).of_rank(8)


@pytest.mark.parametrize(
    ("model", "gpu", "tokens"),
    [
        ("llama-3.1-8b", "h100_sxm", 1),  # FA3
        ("llama-3.1-8b", "l40s", 1),  # FlashInfer
        ("llama-3.1-8b", "rtx_pro_6000", 1),  # compute capability 12.0: FlashInfer
        ("llama-3.1-8b", "b200_sxm", 64),  # TensorRT-LLM, multi-head
        ("llama-3.1-8b", "b300_sxm", 64),
        ("gpt-oss-120b", "b200_sxm", 64),
        ("deepseek-v3", "b200_sxm", 64),  # TensorRT-LLM, latent
        ("deepseek-v3", "h200_sxm", 1),
        ("deepseek-v2", "b200_sxm", 1),  # FlashInfer, latent
        ("deepseek-v3.2", "h200_sxm", 64),  # sparse
        ("glm-5", "b200_sxm", 64),
    ],
)
def test_page_size(model, gpu, tokens):
    placement = placement_of(load_model(model), load_gpu(gpu).sm_arch, Parallelism())
    assert engine_preset("sglang-0.5.23").block_size(placement) == tokens
    assert engine_preset("vllm-0.33").block_size(placement) == 16
