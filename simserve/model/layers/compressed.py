"""Compressed attention (DeepSeek-V4): a sliding window, and beside it groups of tokens compressed to one.

One KV head of `head_dim` values, which are key and value at once. Every layer sees the last `window` tokens;
with a `ratio` of 4 (CSA) it also sees the `index_topk` compressed tokens that an indexer picks, with 128
(HCA) all of them, with 0 nothing else. The low-rank output projection works in groups of heads. Follows the
model's report and configuration (deepseek-ai, April 2026) and vLLM 0.33.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from simserve.errors import ScenarioError
from simserve.model.dtypes import kv_cache_dtype
from simserve.model.layers.base import (
    After,
    AllReduce,
    Attention,
    Cache,
    Form,
    LargestStep,
    Module,
    Part,
    Shard,
    Split,
    divisors,
    input_norm,
    shares,
    under,
)

INDEXED_RATIO = 4
"""The ratio at which an indexer picks compressed tokens, and at which groups overlap."""
RATIOS = (0, INDEXED_RATIO, 128)
_FP8_ENTRY = 448 + 2 * 64 + 8
"""An entry in fp8 (FlashMLA): 448 fp8 values, 64 rotary ones in bf16, 7 scales and a pad."""
_INDEX_SCALE_BYTES = 4
_STATE_VALUE_BYTES = 4
"""Of the values that wait for their group to be whole: fp32."""


class CompressedShape(NamedTuple):
    """Compressed attention of one rank."""

    q_heads: int
    head_dim: int
    window: int
    ratio: int
    index_topk: int
    index_heads: int
    index_dim: int

    def attended(self, context: Any) -> Any:
        """Return the entries that one query sees of so many tokens (a number, or an array of them)."""
        seen = np.minimum(context, float(self.window))
        groups = self.groups(context)
        return seen + (np.minimum(groups, float(self.index_topk)) if self.index_topk else groups)

    def groups(self, context: Any) -> Any:
        """Return the entries that so many tokens are compressed to."""
        return context / self.ratio if self.ratio else 0.0 * context

    def entry_bytes(self, kv_dtype: str) -> int:
        """Return the bytes of one entry. Raises `ScenarioError` for types that no engine offers."""
        dtype = kv_cache_dtype(kv_dtype)
        if dtype in ("fp8", "fp8_ds_mla"):
            return _FP8_ENTRY
        if dtype in ("bf16", "fp16"):
            return 2 * self.head_dim
        raise ScenarioError("is not a type of compressed attention", "kv_dtype", kv_dtype, "fp8, bf16")

    @property
    def index_bytes(self) -> int:
        """Bytes of an indexer's key: fp8 with one fp32 scale."""
        return self.index_dim + _INDEX_SCALE_BYTES


@dataclass(frozen=True)
class CompressedAttention(Attention):
    """A window of `window` tokens and, with a `ratio`, one entry for each so many tokens."""

    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    window: int
    ratio: int
    index_topk: int = 0
    """Compressed tokens attended per query; 0: all."""
    index_n_heads: int = 0
    index_head_dim: int = 0
    name: ClassVar[str] = "compressed attention"

    @property
    def label(self) -> str:
        """CSA, HCA or the window alone."""
        return {0: "window attention", INDEXED_RATIO: "compressed sparse attention"}.get(
            self.ratio, "heavily compressed attention"
        )

    @property
    def overlap(self) -> int:
        """Groups that a token is part of: two where groups overlap."""
        return 2 if self.ratio == INDEXED_RATIO else 1

    def parts(self, hidden: int) -> list[Part]:
        """Return query, KV, compressor, indexer and output projections; attention computes all of them."""
        heads, rank, width = self.num_attention_heads, self.q_lora_rank, self.head_dim
        grouped = heads * width // self.o_groups

        def matrix(rows: int, columns: int, split: Split, product: str) -> Part:
            return Part("attention", rows, columns, split, product, in_attention=True)

        def plain(rows: int, product: str) -> Part:
            return Part("plain", rows, hidden, "none", product, in_attention=True)

        made = [
            matrix(rank + width, hidden, "none", "q and kv down"),
            matrix(heads * width, rank, "rows", "q up"),
            matrix(self.o_groups * self.o_lora_rank, grouped, "rows", "output down"),
            matrix(hidden, self.o_groups * self.o_lora_rank, "columns", "attention out"),
            Part("plain", rank + width + heads),  # two norms, and a sink for each head
        ]
        if self.ratio:
            state = self.overlap * width
            made += [plain(2 * state, "compressor"), Part("plain", self.ratio * state + width)]
        if self.index_topk:
            index = self.index_head_dim
            state = self.overlap * index
            made.append(matrix(self.index_n_heads * index, rank, "none", "indexer q"))
            made.append(plain(self.index_n_heads, "indexer weights"))
            made += [plain(2 * state, "indexer compressor"), Part("plain", self.ratio * state + index)]
        return made

    def after(self, at: Shard) -> After:
        """Return the norm before and the sum of the outputs; everything between is measured as one."""
        return {"": [input_norm(at), AllReduce("attention all-reduce", at.hidden * at.width)]}

    def core(self, tp: int) -> CompressedShape:
        """Return the heads of one rank. Raises `ScenarioError` if TP does not divide them."""
        return CompressedShape(
            self.heads_on(tp),
            self.head_dim,
            self.window,
            self.ratio,
            self.index_topk,
            self.index_n_heads,
            self.index_head_dim,
        )

    def caches(self, tp: int, kv_dtype: str) -> tuple[Cache, ...]:
        """Return compressed tokens and the indexer's keys for them; every rank keeps all of them."""
        made = [Cache(self.entry_bytes(kv_dtype), ratio=self.ratio)] if self.ratio else []
        if self.index_topk:
            made.append(Cache(self.index_bytes, ratio=self.ratio))
        return tuple(made)

    def sequence_bytes(self, tp: int, kv_dtype: str) -> int:
        """Return the window, and what waits for its group to be whole; every rank keeps all of it."""
        waiting = self.state_bytes(self.head_dim) if self.ratio else 0
        waiting += self.state_bytes(self.index_head_dim) if self.index_topk else 0
        return self.window * self.entry_bytes(kv_dtype) + self.overlap * self.ratio * waiting

    def entry_bytes(self, kv_dtype: str) -> int:
        """Return the bytes of one entry (see `CompressedShape`)."""
        return self.core(1).entry_bytes(kv_dtype)

    @property
    def index_bytes(self) -> int:
        """Bytes of an indexer's key."""
        return self.core(1).index_bytes

    def state_bytes(self, width: int) -> int:
        """Return the bytes of one token that waits for its group: values and scores of that width."""
        return 2 * self.overlap * width * _STATE_VALUE_BYTES

    def pair_flops(self, form: Form) -> int:
        """Return the FLOPs of scores and weighted sum over one entry."""
        return 4 * self.num_attention_heads * self.head_dim

    @property
    def index_flops(self) -> float:
        """FLOPs of one query and one token in the indexer, which scores compressed tokens."""
        return 2 * self.index_n_heads * self.index_head_dim / self.ratio if self.index_topk else 0

    def attended(self, context_tokens: float) -> float:
        """Return the entries that one query sees."""
        return float(self.core(1).attended(context_tokens))

    def activation_values(self, step: LargestStep) -> int:
        """Return queries and the output of the heads, and the grouped output [assumption]."""
        heads = shares(self.num_attention_heads, step.tp)
        return 2 * heads * self.head_dim + shares(self.o_groups * self.o_lora_rank, step.tp)

    def modules(self) -> list[Module]:
        """Return the projections as the checkpoint names them."""
        return under("self_attn", ["wq_a", "wq_b", "wkv", "wo_a", "wo_b"])

    @property
    def rotary_width(self) -> int:
        """The rotary part of an entry."""
        return self.qk_rope_head_dim

    def check_tp(self, model: str, tp: int) -> None:
        """Raise `ScenarioError` unless `tp` GPUs can split heads and output groups."""
        super().check_tp(model, tp)
        if self.o_groups % tp:
            raise ScenarioError(
                f"does not divide the {self.o_groups} output groups of {model}",
                "tp",
                tp,
                divisors(self.o_groups),
            )

    @property
    def brief(self) -> str:
        """Window, CSA or HCA."""
        kind = {0: "window", INDEXED_RATIO: f"CSA top {self.index_topk}"}.get(self.ratio, "HCA")
        return f"{kind} {self.num_attention_heads}" if self.ratio != INDEXED_RATIO else kind

    @property
    def words(self) -> str:
        """Heads, window and what is compressed."""
        heads = f"{self.num_attention_heads}/1 x {self.head_dim}, window {self.window}"
        if not self.ratio:
            return heads
        picks = f", top {self.index_topk}" if self.index_topk else ""
        return f"{heads} + 1 in {self.ratio}{picks}"
