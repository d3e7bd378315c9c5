"""Blocks that caches of unequal kinds share in vLLM: compressed attention (DeepSeek-V4).

Layers are sorted into groups that each take whole blocks of one pool: compressed tokens with the indexer's
keys (256 tokens a block), windows (64), and what the compressors have not yet made an entry of (4 and 8
tokens). A block is as large as the widest group, so that a short window costs a whole one. Follows
`_get_packed_kv_cache_groups` and the specs of `models/deepseek_v4` in the wheel of 0.33.0; the sizes equal
those that a server of 0.28.1 logged (vllm issue 54703).
"""

from __future__ import annotations

from math import ceil

from simserve.model.kv import PackedBlocks
from simserve.model.layers import CompressedAttention
from simserve.model.layers.compressed import INDEXED_RATIO
from simserve.model.spec import ModelSpec, Stage

BLOCK_TOKENS = 256
_WINDOW_TOKENS = 64
_STATE_TOKENS = {INDEXED_RATIO: 4, 128: 8}
"""Tokens of a block of compressor states, by ratio."""
_ALIGNMENT_FP8, _ALIGNMENT = 576, 512
"""Bytes that a layer's part of a block is rounded up to."""


class PackedGroups:
    """The rule of a release, by how many steps it plans ahead."""

    def __init__(self, steps: int) -> None:
        """`steps` whose tokens may be in flight at once."""
        self._steps = steps

    def __call__(
        self, model: ModelSpec, stage: Stage, kv_dtype: str, step_tokens: int, sequences: int
    ) -> PackedBlocks:
        """Return the blocks of one stage's layers; `step_tokens` at most in a step."""
        counts: dict[int, int] = {}
        kinds: dict[int, CompressedAttention] = {}
        for group, count in zip(model.layers, stage.layers, strict=True):
            for attention in group.attentions:
                assert isinstance(attention, CompressedAttention)
                counts[attention.ratio] = counts.get(attention.ratio, 0) + count
                kinds[attention.ratio] = attention
        pages = _Pages(kinds, kv_dtype)
        layers, indexed = sum(counts.values()), counts.get(INDEXED_RATIO, 0)
        repeats = _repeats([layers, *(count for ratio, count in counts.items() if ratio)], indexed)
        windows = ceil(layers / repeats)
        compressed = sum(count * pages.compressed(ratio) for ratio, count in counts.items() if ratio)
        sizes = [compressed, ceil(layers / windows) * pages.window]
        spans = [(kinds[ratio].window, _WINDOW_TOKENS) for ratio in list(kinds)[:1]] * windows
        for ratio, count in counts.items():
            if ratio and count:
                split = ceil(count / repeats)
                sizes.append(ceil(count / split) * pages.states(ratio))
                spans += [(kinds[ratio].overlap * ratio, _STATE_TOKENS[ratio])] * split
        held = sum(ceil((span - 1) / size) + 1 for span, size in spans)
        flying = self._steps * step_tokens
        most = sum(ceil((span - 1 + flying) / size) + 1 for span, size in spans)
        words = (
            f"blocks of {max(sizes):,} B for {BLOCK_TOKENS} tokens, {held} more for each sequence's windows"
        )
        return PackedBlocks(max(sizes), BLOCK_TOKENS, held, most - held, 0, words)


class _Pages:
    """Bytes of one layer's part of a block."""

    def __init__(self, kinds: dict[int, CompressedAttention], kv_dtype: str) -> None:
        first = next(iter(kinds.values()))
        self._kinds = kinds
        self._entry = first.entry_bytes(kv_dtype)
        self._alignment = _ALIGNMENT_FP8 if kv_dtype.startswith("fp8") else _ALIGNMENT
        self.window = self._rounded(_WINDOW_TOKENS * self._entry)

    def compressed(self, ratio: int) -> int:
        entries, kind = BLOCK_TOKENS // ratio, self._kinds[ratio]
        index = self._rounded(entries * kind.index_bytes) if kind.index_topk else 0
        return self._rounded(entries * self._entry) + index

    def states(self, ratio: int) -> int:
        tokens, kind = _STATE_TOKENS[ratio], self._kinds[ratio]
        index = self._rounded(tokens * kind.state_bytes(kind.index_head_dim)) if kind.index_topk else 0
        return self._rounded(tokens * kind.state_bytes(kind.head_dim)) + index

    def _rounded(self, size: int) -> int:
        return ceil(size / self._alignment) * self._alignment


def _repeats(counts: list[int], least: int) -> int:
    """Return how many layers a group repeats: the number from `least` on that pads the counts least."""
    counts = [count for count in counts if count]

    def padding(size: int) -> int:
        return sum(-count % size for count in counts)

    return min(range(max(1, least), max(counts) + 1), key=lambda size: (padding(size), -size))
