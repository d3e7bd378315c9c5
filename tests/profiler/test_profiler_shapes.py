"""What is planned: counts of experts, uneven lengths, refinement, and the shapes that a step asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.errors import ProfileError
from simserve.model import load_model
from simserve.profiler.case import refinement
from simserve.profiler.ops.attention import Uneven
from simserve.profiler.ops.moe import balanced_counts, picks_of, skewed_counts, uniform_counts
from simserve.profiler.shapes import CUDA_SIZES, shapes_of


def test_llama_8b_shapes_are_the_published_matrices() -> None:
    shapes = shapes_of([load_model("llama-3.1-8b")], [1, 8], "bf16", ["bf16"], CUDA_SIZES, 2)
    # hidden 4096, 32 heads and 8 KV heads of 128, intermediate 14336, vocabulary 128256
    assert shapes.products[:4] == [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    assert shapes.products[4:] == [(768, 4096), (4096, 512), (3584, 4096), (4096, 1792)]
    assert shapes.plain_products == [(128256, 4096), (16032, 4096)]
    assert [head[:3] for head in shapes.heads] == [(32, 8, 128), (4, 1, 128)]


def test_deepseek_v3_shapes() -> None:
    shapes = shapes_of([load_model("deepseek-v3")], [1], "bf16", ["fp8_block"], CUDA_SIZES, 2)
    assert (1536 + 576, 7168) in shapes.products
    assert (128 * 192, 1536) in shapes.products
    assert (128 * 256, 512) in shapes.products
    assert [it[:5] for it in shapes.latents] == [(128, 512, 64, 128, 128)]
    assert shapes.experts == [(7168, 2048, 256, 8, 1)]


def test_a_tp_degree_that_fits_no_model_is_refused() -> None:
    with pytest.raises(ProfileError, match="--tp 3: none divides the attention heads of"):
        shapes_of([load_model("llama-3.1-8b")], [3], "bf16", ["bf16"], CUDA_SIZES, 2)


def test_refinement_halves_what_is_left() -> None:
    assert refinement(9) == [0, 3, 2, 3, 1, 3, 2, 3, 0]
    assert refinement(2) == [0, 0]
    assert refinement(1) == [0]


@given(experts=st.integers(2, 64), tokens=st.integers(1, 200), data=st.data())
def test_counts_are_picks_of_distinct_experts(experts: int, tokens: int, data: st.DataObject) -> None:
    topk = data.draw(st.integers(1, min(8, experts)))
    touched = data.draw(st.integers(topk, experts))
    every = {
        "balanced": balanced_counts(experts, tokens * topk),
        "few": balanced_counts(experts, tokens * topk, touched),
        "uniform": uniform_counts(experts, tokens, topk),
    }
    if topk > 1 and touched > topk - 1 and -(-tokens * (topk - 1) // (touched - 1)) <= tokens:
        every["skewed"] = skewed_counts(experts, tokens, topk, touched)
        assert every["skewed"][0] == tokens
    for counts in every.values():
        assert sum(counts) == tokens * topk
        picks = picks_of(counts, tokens)
        assert [len(set(row)) for row in picks] == [topk] * tokens
        dealt = [expert for row in picks for expert in row]
        assert [dealt.count(expert) for expert in range(experts)] == counts
    assert sum(count > 0 for count in every["few"]) == min(touched, tokens * topk)
    assert max(every["balanced"]) - min(every["balanced"]) <= 1


@given(batch=st.integers(4, 128), ratio=st.sampled_from([4, 16]), mean=st.integers(256, 8192), data=st.data())
def test_uneven_batches_have_the_mean_that_they_claim(
    batch: int, ratio: int, mean: int, data: st.DataObject
) -> None:
    many = data.draw(st.integers(1, batch // 2))
    spans = Uneven().spans({"batch": batch, "long": many, "ratio": ratio, "kv_len": mean})
    lengths = sorted(span.new + span.cached for span in spans)
    assert len(spans) == batch
    assert lengths[-1] == ratio * lengths[0]
    # Whole tokens: half a token of the short ones, times the ratio for the long ones, at most.
    assert abs(sum(lengths) / batch - mean) <= 0.5 * (batch - many + many * ratio) / batch + 1e-9
