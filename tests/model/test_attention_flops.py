"""Attention arithmetic: figures computed by hand in the multi-head latent attention literature."""

import pytest

from simserve.model import flops_per_pair, load_model
from simserve.model.layers import GqaAttention, MlaAttention
from simserve.model.params import absorption_break_even_tokens, decode_intensity, expansion_flops


def mla(name: str) -> MlaAttention:
    attention = load_model(name).layers[0].attentions[0]
    assert isinstance(attention, MlaAttention)
    return attention


def test_pair_flops_of_both_forms() -> None:
    attention = mla("deepseek-v3")
    assert attention.pair_flops("expanded") == 640 * 128
    assert attention.pair_flops("absorbed") == 2176 * 128
    assert expansion_flops(attention) == 2 * 512 * 128 * 256
    assert GqaAttention(64, 8, 128).pair_flops("expanded") == 4 * 64 * 128


@pytest.mark.parametrize(("name", "flops_per_byte"), [("deepseek-v3", 241.8), ("kimi-k2-instruct", 120.9)])
def test_absorbed_decode_intensity(name: str, flops_per_byte: float) -> None:
    assert decode_intensity(mla(name)) == pytest.approx(flops_per_byte, abs=0.05)


@pytest.mark.parametrize(("heads", "kv_heads", "expected"), [(32, 32, 1), (64, 8, 8), (64, 4, 16)])
def test_gqa_intensity_is_heads_per_kv_head(heads: int, kv_heads: int, expected: int) -> None:
    assert decode_intensity(GqaAttention(heads, kv_heads, 128)) == expected


def test_absorbing_pays_below_171_new_tokens_whatever_the_heads() -> None:
    for name in ("deepseek-v3", "kimi-k2-instruct"):
        assert absorption_break_even_tokens(mla(name)) == pytest.approx(171, abs=0.5)
        assert absorption_break_even_tokens(mla(name), 4096) == pytest.approx(164, abs=0.5)


def test_break_even_is_where_both_forms_cost_the_same() -> None:
    attention, context = mla("deepseek-v3"), 4096
    new = absorption_break_even_tokens(attention, context)
    expanded = expansion_flops(attention) * context + attention.pair_flops("expanded") * new * context
    absorbed = expansion_flops(attention) * new + attention.pair_flops("absorbed") * new * context
    assert expanded == pytest.approx(absorbed)


def test_pairs_sum_over_layers_and_bounded_layers_count_their_share() -> None:
    assert flops_per_pair(load_model("llama-3.1-8b")) == 32 * 4 * 32 * 128
    gpt_oss = load_model("gpt-oss-120b")
    layer = 4 * 64 * 64
    assert flops_per_pair(gpt_oss) == 36 * layer
    assert flops_per_pair(gpt_oss, context_tokens=1280) == pytest.approx(18 * layer * 1.1)
    assert flops_per_pair(load_model("deepseek-v3"), "absorbed") == 61 * 2176 * 128


def test_sparse_attention_pays_its_indexer_for_every_pair() -> None:
    spec = load_model("deepseek-v3.2")
    index = 2 * 64 * 128
    assert flops_per_pair(spec, "absorbed", 20480) == pytest.approx(61 * (2176 * 128 * 0.1 + index))
