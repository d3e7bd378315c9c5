"""Attention with a KV cache of heads: multi-head, grouped-query, multi-query; windows, chunks, MFA.

Tensor parallelism splits heads (KV heads are copied once there are fewer than ranks); one all-reduce follows
the output projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from simserve.errors import ScenarioError
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


class HeadShape(NamedTuple):
    """Attention heads of one rank."""

    q_heads: int
    kv_heads: int
    head_dim: int
    window: int
    """Keys that a query sees at most; 0 = all."""
    chunked: bool = False
    """True if the window does not slide but lies on a grid: a query sees its own chunk's past (Llama 4)."""


@dataclass(frozen=True)
class GqaAttention(Attention):
    """Multi-head, grouped-query or multi-query attention; optionally bounded to a window or a chunk."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    span: Literal["full", "window", "chunked"] = "full"
    span_tokens: int = 0
    """Tokens of the sliding window, or of the local chunk; 0 for full attention."""
    q_lora_rank: int = 0
    """Rank of a factorised query projection (MFA of Step-3); 0 if the projection is one matrix."""
    qk_norm: bool = False
    """True if queries and keys pass a learned norm of `head_dim` weights each (Qwen3)."""
    bias: bool = False
    """True if the q, k and v projections have biases."""
    output_bias: bool = False
    output_gate: bool = False
    """True if a gate as wide as the queries multiplies the output (Qwen3.5)."""
    sinks: bool = False
    """True if each head has a learned attention sink (gpt-oss)."""

    @property
    def label(self) -> str:
        """Attention, and what bounds it."""
        return self.name if self.span == "full" else f"{self.name} ({self.span} {self.span_tokens})"

    def parts(self, hidden: int) -> list[Part]:
        """Return q, k and v as one product (after the query's own of MFA), and the output projection."""
        queries = self.num_attention_heads * self.head_dim
        gates = queries if self.output_gate else 0
        heads, rank = self.num_key_value_heads, self.q_lora_rank
        pairs = 2 * heads * self.head_dim
        first = "qkv down" if rank else "qkv"
        if rank:
            made = [Part("attention", rank, hidden, "none", first)]
        else:
            made = [Part("attention", queries + gates, hidden, "rows", first)]
        made.append(Part("attention", pairs, hidden, "kv_heads", first, kv_heads=heads))
        if rank:
            made.append(Part("plain", rank))
            made.append(Part("attention", queries + gates, rank, "rows", "q up"))
        made.append(Part("attention", hidden, queries, "columns", "attention out", after_core=True))
        biases = (queries + gates + pairs) * self.bias + hidden * self.output_bias
        added = biases + 2 * self.head_dim * self.qk_norm + self.num_attention_heads * self.sinks
        return [*made, Part("plain", added)] if added else made

    def after(self, at: Shard) -> After:
        """Return norms, rotary embedding with the write to the cache, gate, and the sum of the outputs."""
        shape = self.core(at.tp)
        q_size, kv_size = shape.q_heads * shape.head_dim, shape.kv_heads * shape.head_dim
        heads, rank = q_size + kv_size, self.q_lora_rank
        made: list[Rows | AllReduce] = []
        if self.qk_norm:
            made.append(Rows("qk norm", 2 * heads * at.width, "rmsnorm", heads))
        moved = 2 * heads * at.width + 2 * kv_size * (at.width + at.kv_width)
        made.append(Rows("rotary + KV write", moved, "rope_write", heads, 2 * kv_size))
        if self.output_gate:
            made.append(Rows("output gate", 3 * q_size * at.width))
        rows: dict[str, list[Rows | AllReduce]] = {
            "": [input_norm(at)],
            "q up" if rank else "qkv": made,
            "attention out": [AllReduce("attention all-reduce", at.hidden * at.width)],
        }
        if rank:
            rows["qkv down"] = [Rows("q norm", 2 * rank * at.width, "rmsnorm", rank)]
        return rows

    def core(self, tp: int) -> HeadShape:
        """Return the heads of one rank. Raises `ScenarioError` if TP does not divide them."""
        return HeadShape(
            self.heads_on(tp),
            max(1, self.num_key_value_heads // tp),
            self.head_dim,
            self.span_tokens if self.span != "full" else 0,
            self.span == "chunked",
        )

    def caches(self, tp: int, kv_dtype: str) -> tuple[Cache, ...]:
        """Return keys and values of the heads of one rank, all of them or those of the span."""
        dtype = kv_cache_dtype(kv_dtype)
        if dtype == "fp8_ds_mla":
            raise ScenarioError("is for latent attention only", "kv_dtype", dtype, "fp8")
        heads = max(1, shares(self.num_key_value_heads, tp))
        span = self.span_tokens if self.span != "full" else 0
        size = 2 * heads * vector_bytes(self.head_dim, dtype)
        return (Cache(size, span_tokens=span, chunked=self.span == "chunked"),)

    def pair_flops(self, form: Form) -> int:
        """Return the FLOPs of scores and weighted sum."""
        return 4 * self.num_attention_heads * self.head_dim

    def attended(self, context_tokens: float) -> float:
        """Return the keys of the window or the chunk at most."""
        return context_tokens if self.span == "full" else min(context_tokens, self.span_tokens)

    def activation_values(self, step: LargestStep) -> int:
        """Return queries, keys, values, gates, and the output of the heads."""
        heads = shares(self.num_attention_heads, step.tp) * (3 if self.output_gate else 2)
        pairs = 2 * max(1, shares(self.num_key_value_heads, step.tp))
        return (heads + pairs) * self.head_dim

    def modules(self) -> list[Module]:
        """Return the four projections."""
        return under("self_attn", ["q_proj", "k_proj", "v_proj", "o_proj"])

    @property
    def rotary_width(self) -> int:
        """The whole head."""
        return self.head_dim

    @property
    def kv_heads(self) -> int:
        """KV heads that tensor parallelism splits."""
        return self.num_key_value_heads

    def check_tp(self, model: str, tp: int) -> None:
        """Raise `ScenarioError` unless `tp` GPUs can split query heads and split or copy KV heads."""
        super().check_tp(model, tp)
        heads = self.num_key_value_heads
        if heads % tp and tp % heads:
            raise ScenarioError(
                f"neither divides nor is a multiple of the {heads} KV heads of {model}", "tp", tp
            )

    @property
    def brief(self) -> str:
        """MHA, MQA or GQA with its heads, or only what bounds the context."""
        if self.span != "full":
            return {"window": "window", "chunked": "chunks"}[self.span]
        return self._heads

    @property
    def words(self) -> str:
        """Heads, their size, and what bounds the context."""
        span = "" if self.span == "full" else f", {self.span} {self.span_tokens}"
        return f"{self._heads} x {self.head_dim}{span}"

    @property
    def _heads(self) -> str:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        return f"{ {1: 'MQA', heads: 'MHA'}.get(kv_heads, 'GQA') } {heads}/{kv_heads}"
