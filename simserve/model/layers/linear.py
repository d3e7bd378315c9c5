"""Linear attention: a state of constant size per sequence instead of a KV cache.

Gated delta rules (Qwen3-Next, Qwen3.5), Kimi delta attention, Mamba. The convolution and the vectors of a
layer are counted with its matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from simserve.model.layers.base import (
    After,
    Attention,
    Cache,
    Form,
    LargestStep,
    Module,
    Part,
    Shard,
    input_norm,
    shares,
    under,
)

_DELTA_RULE_FLOPS = 6
"""FLOPs per element of a linear attention's state and token: decay, read for the correction, update, read
for the output (8 without the decay fused; the gated delta rule, arXiv 2412.06464, counted as three
multiply-adds)."""


class StateShape(NamedTuple):
    """The state of one rank, read and written for each token."""

    state_bytes: float


@dataclass(frozen=True)
class LinearAttention(Attention):
    """Attention with one state per sequence."""

    num_attention_heads: int
    head_dim: int
    state_bytes: int
    params: int
    name: ClassVar[str] = "linear attention"

    def parts(self, hidden: int) -> list[Part]:
        """Return all matrices as one of the model's width; the rest is convolution and vectors."""
        rows, rest = divmod(self.params, hidden)
        made = [Part("attention", rows, hidden, "rows", "linear attention projections")]
        return [*made, Part("attention", rest, 1, "rows")] if rest else made

    def after(self, at: Shard) -> After:
        """Return the norm before it."""
        return {"": [input_norm(at)]}

    def core(self, tp: int) -> StateShape:
        """Return the state of one rank."""
        return StateShape(self.state_bytes / tp)

    def sequence_bytes(self, tp: int, kv_dtype: str) -> int:
        """Return one rank's part of the state."""
        return shares(self.state_bytes, tp)

    def caches(self, tp: int, kv_dtype: str) -> tuple[Cache, ...]:
        """Return nothing: no token adds to the state."""
        return ()

    def pair_flops(self, form: Form) -> int:
        """Return 0: queries meet the state, not keys."""
        return 0

    @property
    def state_flops(self) -> float:
        """FLOPs of the delta rule."""
        return _DELTA_RULE_FLOPS * self.num_attention_heads * self.head_dim**2

    def activation_values(self, step: LargestStep) -> int:
        """Return the outputs of all matrices."""
        return shares(self.params, step.hidden_size * step.tp)

    def modules(self) -> list[Module]:
        """Return the projections in and out."""
        return under("linear_attn", ["in_proj_qkvz", "out_proj"])

    @property
    def brief(self) -> str:
        """Heads."""
        return f"linear {self.num_attention_heads}"

    @property
    def words(self) -> str:
        """Heads and their size."""
        return f"{self.brief} x {self.head_dim}"
