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
        """Return the blocks of one stage's layers, in the groups of all; `step_tokens` at most in a step."""
        kinds = _kinds(model)
        everywhere = _count(model, tuple(group.count for group in model.layers))
        here = _count(model, stage.layers)
        pages, window = _Pages(kinds, kv_dtype), next(iter(kinds.values())).window
        ratios = [ratio for ratio in everywhere if ratio]
        layers = sum(everywhere.values())
        repeats = _repeats([layers, *(everywhere[it] for it in ratios)], everywhere.get(INDEXED_RATIO, 0))
        windows = ceil(layers / repeats)
        sizes = [sum(here.get(ratio, 0) * pages.compressed(ratio) for ratio in ratios)]
        sizes.append(ceil(sum(here.values()) / windows) * pages.window)
        spans = [(window, _WINDOW_TOKENS)] * windows
        for ratio in ratios:
            groups = ceil(everywhere[ratio] / repeats)
            sizes.append(ceil(here.get(ratio, 0) / groups) * pages.states(ratio))
            spans += [(kinds[ratio].overlap * ratio, _STATE_TOKENS[ratio])] * groups
        held = sum(ceil((span - 1) / size) + 1 for span, size in spans)
        flying = self._steps * step_tokens
        most = sum(ceil((span - 1 + flying) / size) + 1 for span, size in spans)
        words = f"blocks of {max(sizes):,} B for {BLOCK_TOKENS} tokens, {held} more for each sequence"
        return PackedBlocks(max(sizes), BLOCK_TOKENS, held, most - held, 0, words)


def _kinds(model: ModelSpec) -> dict[int, CompressedAttention]:
    """Return the attentions by ratio; all of a model are compressed ones."""
    found: dict[int, CompressedAttention] = {}
    for attention in (it for group in model.layers for it in group.attentions):
        assert isinstance(attention, CompressedAttention)
        found[attention.ratio] = attention
    return found


def _count(model: ModelSpec, layers: tuple[int, ...]) -> dict[int, int]:
    """Return the layers by ratio, of `layers[i]` of group i."""
    counts: dict[int, int] = {}
    for group, count in zip(model.layers, layers, strict=True):
        for attention in group.attentions:
            assert isinstance(attention, CompressedAttention)
            counts[attention.ratio] = counts.get(attention.ratio, 0) + count
    return counts


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

    def padding(size: int) -> int:
        return sum(-count % size for count in counts)

    return min(range(max(1, least), max(counts) + 1), key=lambda size: (padding(size), -size))
