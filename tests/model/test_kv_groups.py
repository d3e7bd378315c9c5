"""KV groups of models with windows, by the rules and examples of vLLM's own grouping."""

from __future__ import annotations

import pytest

from simserve.engines.presets import memory_rules
from simserve.hardware import load_gpu
from simserve.model import Parallelism, load_model, memory_ledger
from simserve.model.kv import KvGroups, kv_groups
from simserve.model.layers import DenseFfn, GqaAttention, MlaAttention
from simserve.model.memory_lines import MemorySettings
from simserve.model.spec import LayerGroup, ModelSpec


def model(window_layers: int, full_layers: int, *, window: int = 1024, full_heads: int = 8) -> ModelSpec:
    slides = GqaAttention(32, 8, 128, span="window", span_tokens=window)
    full = GqaAttention(32, full_heads, 128)
    ffn = (DenseFfn(14336),)
    layers = (LayerGroup(window_layers, (slides,), ffn), LayerGroup(full_layers, (full,), ffn))
    return ModelSpec("made", 4096, 32000, 131072, tuple(g for g in layers if g.count), False, "test")


@pytest.mark.parametrize(
    ("window_layers", "full_layers", "windows", "size", "padding"),
    [
        (18, 18, (128, 0), 18, 0),  # gpt-oss-120b
        (20, 10, (128, 128, 0), 10, 0),  # the example in the engine's own note
        (52, 10, (128,) * 6 + (0,), 10, 8),  # Gemma-3-27B: five of six layers slide
        (12, 13, (128, 0), 13, 1),  # close numbers are padded to the larger
        (12, 17, (128, 0), 17, 5),  # below 1.5 times
        (12, 18, (128, 0, 0), 12, 6),
    ],
)
def test_groups_are_equally_large(
    window_layers: int, full_layers: int, windows: tuple[int, ...], size: int, padding: int
) -> None:
    found = kv_groups(model(window_layers, full_layers, window=128), 100)
    assert found == KvGroups(windows, size, padding, 100)


def test_older_versions_pad_less() -> None:
    """0.15.1 takes the larger number only below 1.25 times: 12 and 15 are three groups there, two later."""
    made = model(12, 15, window=128)
    assert kv_groups(made, 1, close=1.25) == KvGroups((128, 0, 0), 12, 9, 1)
    assert kv_groups(made, 1) == KvGroups((128, 0), 15, 3, 1)


def test_models_with_one_cache_have_no_groups() -> None:
    latent = LayerGroup(4, (MlaAttention(128, 1536, 512, 128, 64, 128),), (DenseFfn(1),))
    mixed = model(4, 4)
    assert kv_groups(load_model("llama-3.1-8b"), 1) is None
    assert kv_groups(load_model("llama-4-maverick"), 1) is None, "chunks: kept whole by default"
    assert kv_groups(load_model("deepseek-v3"), 1) is None
    assert kv_groups(model(4, 4, full_heads=4), 1) is None, "unequal caches"
    assert kv_groups(ModelSpec("m", 1, 1, 1, (*mixed.layers, latent), False, "test"), 1) is None


def test_a_model_of_windows_only_is_one_group() -> None:
    assert kv_groups(model(32, 0, window=4096), 1) == KvGroups((4096,), 32, 0, 1)


def test_blocks_of_a_sequence() -> None:
    """Window 128, 300 tokens in flight: 427 tokens are 27 blocks of 16, and one more for where they begin."""
    groups = KvGroups((128, 0, 128), 10, 0, 300)
    assert groups.sequence_blocks(100, 16) == 3 * 7
    assert groups.sequence_blocks(16_000, 16) == 1000 + 2 * 28
    assert groups.longest(1000 + 2 * 28, 16, 131_072) == 16_000
    assert groups.longest(1000 + 2 * 28 - 1, 16, 131_072) == 15_984
    assert groups.longest(10**9, 16, 131_072) == 131_072


def ledger(groups: KvGroups | None, **options: int):
    return memory_ledger(
        MemorySettings(
            load_model("gpt-oss-120b"),
            load_gpu("h100_sxm"),
            Parallelism(tp=2),
            weights_dtype="fp8",
            kv_dtype="bf16",
            block_size=16,
            gpu_memory_utilization=0.9,
            max_num_batched_tokens=8192,
            max_num_seqs=256,
            kv_groups=groups,
            rules=memory_rules("vllm-0.33"),
            **options,
        )
    )


def test_a_block_holds_the_tokens_of_one_group() -> None:
    """gpt-oss-120b on two GPUs: 18 layers x 4 heads x 64 x 2 x 2 B x 16 tokens = 294,912 B."""
    groups = kv_groups(load_model("gpt-oss-120b"), 16_384)
    found = ledger(groups)
    assert found.kv_blocks == found.kv_bytes // 294_912 - 1
    assert found.kv_bytes == ledger(None).kv_bytes
    assert found.kv_blocks // 2 - ledger(None).kv_blocks in (0, 1)
    assert "18 layers each" in found.line("KV cache").basis


def test_longer_sequences_fit_where_windows_give_back() -> None:
    """All the blocks but those of one window are the full group's: nearly twice as long a sequence."""
    groups = kv_groups(load_model("gpt-oss-120b"), 8192)
    assert groups is not None
    found = ledger(groups)
    by_hand = (found.kv_blocks - (-(-(127 + 8192) // 16) + 1)) * 16
    assert groups.longest(found.kv_blocks, 16, 1 << 30) == by_hand
    assert found.kv_tokens == min(by_hand, 131_072)


def test_capacity_counts_what_long_sequences_take() -> None:
    """At 131,072 tokens a sequence takes 8,192 blocks of the full group and 521 of the window's."""
    groups = kv_groups(load_model("gpt-oss-120b"), 8192)
    found = ledger(groups)
    assert found.capacity_tokens(131_072) == found.kv_blocks * 131_072 // (8192 + 521)
    assert ledger(None).capacity_tokens(131_072) == ledger(None).kv_blocks * 16
