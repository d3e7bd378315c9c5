"""Multi-head latent attention (DeepSeek-V2 and later): low-rank query, one latent per token.

Decoding attends the latents themselves (absorbed), prompts rebuild keys and values of each head (expanded).
Tensor parallelism splits heads; the latent and the products that make it are the same on every rank. The
query and latent down-projections are one product, as engines fuse them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from simserve.model.dtypes import kv_cache_dtype, vector_bytes
from simserve.model.layers.base import (
    After,
    AllReduce,
    Attention,
    Cache,
    Form,
    LargestStep,
    Module,
    Part,
    Rows,
    Shard,
    input_norm,
    shares,
    under,
)

LATENT_UP = "latent up"
"""The product from latents to keys and values, which the attention of MLA computes in either of its forms."""
HOPPER_GLUE_US = 45.0
"""What an MLA block takes on Hopper beside its products, attention, norms and rotary: copies between the
layouts of its kernels, scheduling metadata, query quantisation (aiconfigurator-core 0.12.0: whole blocks
of vLLM 0.24.0 on H100 less the sum of their parts, 40-60 us up to 64 sequences; 40-55 on H200; about 0 on
B200)."""
_INDEX_KEY_SCALE_BYTES = 4
_FLASH_MLA_SCALES = 4
_MOST_CONTEXT = 64 * 1024
"""Tokens of latents that vLLM expands at once, for prompts whose beginning is cached."""
_CONTEXTS = 8
"""Longest sequences that it wants to expand at once below that."""


class LatentShape(NamedTuple):
    """MLA of one rank."""

    q_heads: int
    kv_lora: int
    rope: int
    nope: int
    v_dim: int
    index_topk: int = 0
    """Keys attended per query where a sparse indexer selects them; 0 = all."""
    index_heads: int = 0
    index_dim: int = 0

    @property
    def index_flops(self) -> int:
        """FLOPs of one query and one key in the indexer."""
        return 2 * self.index_heads * self.index_dim if self.index_topk else 0


@dataclass(frozen=True)
class MlaAttention(Attention):
    """One latent of kv_lora_rank + rope per token and layer."""

    num_attention_heads: int
    q_lora_rank: int
    """Rank of the factorised query projection; 0 if it is one matrix (DeepSeek-V2-Lite)."""
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_topk: int = 0
    """Keys attended per query where a sparse indexer selects them (DeepSeek-V3.2); 0 = all."""
    index_n_heads: int = 0
    index_head_dim: int = 0
    name: ClassVar[str] = "MLA attention"

    def parts(self, hidden: int) -> list[Part]:
        """Return the low-rank projections, what expands latents, the indexer's, and the output's."""
        heads, rank, latent = self.num_attention_heads, self.q_lora_rank, self.kv_lora_rank
        queries = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        expanded = heads * (self.qk_nope_head_dim + self.v_head_dim)
        width = latent + self.qk_rope_head_dim
        if rank:
            made = [
                Part("attention", rank + width, hidden, "none", "q and latent down"),
                Part("attention", queries, rank, "rows", "q up"),
            ]
        else:
            made = [
                Part("attention", queries, hidden, "rows", "q"),
                Part("attention", width, hidden, "none", "latent down"),
            ]
        made.append(Part("plain", rank + latent))
        made.append(Part("attention", expanded, latent, "rows", LATENT_UP, in_attention=True))
        if self.index_topk:
            index_heads, index_width = self.index_n_heads, self.index_head_dim
            made.append(Part("attention", index_heads * index_width, rank or hidden, "none", "indexer q"))
            made.append(Part("attention", index_width, hidden, "none", "indexer k"))
            made.append(Part("plain", index_heads, hidden, "none", "indexer weights"))
        made.append(
            Part("attention", hidden, heads * self.v_head_dim, "columns", "attention out", after_core=True)
        )
        return made

    def after(self, at: Shard) -> After:
        """Return norms, what Hopper's kernels need between them, rotary embedding with the write to the
        cache, and the sum of the outputs."""
        rank, rope = self.q_lora_rank, self.qk_rope_head_dim
        heads, latent = self.core(at.tp).q_heads, self.kv_lora_rank + rope
        rotated = 2 * (heads + 1) * rope * at.width
        moved = rotated + latent * (at.width + at.kv_width)
        rows: dict[str, list[Rows | AllReduce]] = {
            "": [input_norm(at)],
            "q up" if rank else "latent down": [
                Rows("MLA glue", 0.0, start_us={90: HOPPER_GLUE_US}),
                Rows("rotary + KV write", moved, "rope_write", (heads + 1) * rope, latent),
            ],
            "attention out": [AllReduce("attention all-reduce", at.hidden * at.width)],
        }
        if rank:
            normed = rank + latent
            rows["q and latent down"] = [Rows("q and latent norm", 2 * normed * at.width, "rmsnorm", normed)]
        return rows

    def core(self, tp: int) -> LatentShape:
        """Return latent and heads of one rank. Raises `ScenarioError` if TP does not divide the heads."""
        return LatentShape(
            self.heads_on(tp),
            self.kv_lora_rank,
            self.qk_rope_head_dim,
            self.qk_nope_head_dim,
            self.v_head_dim,
            self.index_topk,
            self.index_n_heads,
            self.index_head_dim,
        )

    def caches(self, tp: int, kv_dtype: str) -> tuple[Cache, ...]:
        """Return the latent, and the indexer's own fp8 key with one fp32 scale (DeepSeek-V3.2)."""
        dtype = kv_cache_dtype(kv_dtype)
        latent, rope = self.kv_lora_rank, self.qk_rope_head_dim
        if dtype == "fp8_ds_mla":
            size = latent + 4 * _FLASH_MLA_SCALES + 2 * rope
        else:
            size = vector_bytes(latent + rope, dtype)
        index = self.index_head_dim + _INDEX_KEY_SCALE_BYTES if self.index_topk else 0
        return (Cache(size + index),)

    def pair_flops(self, form: Form) -> int:
        """Return the FLOPs of scores and weighted sum, over latents or over expanded keys and values."""
        if form == "absorbed":
            return 2 * self.num_attention_heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)
        key = self.qk_nope_head_dim + self.qk_rope_head_dim
        return 2 * self.num_attention_heads * (key + self.v_head_dim)

    @property
    def index_flops(self) -> float:
        """FLOPs of one query and one key in the indexer."""
        return self.core(1).index_flops

    def attended(self, context_tokens: float) -> float:
        """Return the keys that the indexer selects at most."""
        return min(context_tokens, self.index_topk) if self.index_topk else context_tokens

    def activation_values(self, step: LargestStep) -> int:
        """Return projections and the output of the heads, and what expands a cached context."""
        heads = shares(self.num_attention_heads, step.tp)
        own = heads * 2 * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)
        context = max(step.sequences * 64, min(_CONTEXTS * step.longest, _MOST_CONTEXT))
        expanded = heads * (self.qk_nope_head_dim + self.v_head_dim)
        return own + shares(context * expanded, step.tokens)

    def modules(self) -> list[Module]:
        """Return the projections as DeepSeek names them."""
        query = ["q_a_proj", "q_b_proj"] if self.q_lora_rank else ["q_proj"]
        return under("self_attn", [*query, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"])

    @property
    def rotary_width(self) -> int:
        """The rotary part of a key, which all heads share."""
        return self.qk_rope_head_dim

    @property
    def brief(self) -> str:
        """Heads, and the keys that an indexer selects."""
        return f"MLA {self.num_attention_heads}" + (f" top {self.index_topk}" if self.index_topk else "")

    @property
    def words(self) -> str:
        """Heads and latent."""
        return f"{self.brief}, latent {self.kv_lora_rank} + {self.qk_rope_head_dim}"
