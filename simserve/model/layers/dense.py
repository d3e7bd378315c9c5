"""Dense feed-forward blocks: gated (two products, up and gate fused) or the classic pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simserve.model.layers.base import (
    AllReduce,
    Block,
    Ffn,
    LargestStep,
    Module,
    Part,
    Shard,
    input_norm,
    mlp_activation,
    mlp_parts,
    shares,
)

GATED = ("gate_proj", "up_proj", "down_proj")
"""The matrices of a gated MLP, as checkpoints name them."""


@dataclass(frozen=True)
class DenseFfn(Ffn):
    """A dense MLP; `matrices` is 3 for gated (SwiGLU), 2 for the classic pair."""

    intermediate_size: int
    matrices: int = 3
    bias: bool = False
    name: ClassVar[str] = "MLP"

    def parts(self, hidden: int) -> list[Part]:
        """Return gate and up as one product, and down."""
        made = self._mlp(hidden)
        if self.bias:
            made.append(Part("plain", (self.matrices - 1) * self.intermediate_size + hidden))
        return made

    def _mlp(self, hidden: int) -> list[Part]:
        return mlp_parts("dense_ffn", self.name, self.intermediate_size, hidden, self.matrices)

    def entry(self, at: Shard) -> Block:
        """Return the norm."""
        return Block([], {"": [input_norm(at)]})

    def body(self, at: Shard) -> Block:
        """Return both products, the activation between them and the sum of the outputs."""
        parts = self._mlp(at.hidden)
        after = {
            f"{self.name} up": [mlp_activation(self.name, parts, at)],
            f"{self.name} down": [AllReduce(f"{self.name} all-reduce", at.hidden * at.width)],
        }
        return Block(parts, after)

    def activation_values(self, step: LargestStep) -> int:
        """Return gate, up and their product."""
        return self.matrices * shares(self.intermediate_size, step.tp)

    @property
    def hidden_states(self) -> int:
        """The block's input and the residual."""
        return 2

    def modules(self) -> dict[str, list[Module]]:
        """Return the three matrices."""
        return {"dense": [(f"mlp.{name}", f"feed_forward.{name}") for name in GATED]}

    @property
    def words(self) -> str:
        """Width."""
        return f"dense {self.intermediate_size}"
