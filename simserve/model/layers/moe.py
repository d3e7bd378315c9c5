"""Mixture-of-experts blocks: router, shared expert, routed experts.

How tokens reach the experts of other GPUs is the latency model's (`latency/blocks/moe.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from simserve.model.layers.base import (
    Block,
    Ffn,
    LargestStep,
    Module,
    Part,
    Rows,
    Shard,
    input_norm,
    mlp_activation,
    mlp_parts,
    shares,
)
from simserve.model.layers.dense import GATED

ROUTED = "routed experts"
"""The products of routed experts, three matrices each."""
_SHARED = "shared expert"
_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""Mixtral's names for an expert's matrices."""
_FUSED = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"}


class ExpertShape(NamedTuple):
    """Routed experts of one layer, and how matrices are split."""

    hidden: int
    inter: int
    experts: int
    topk: int
    tp: int


@dataclass(frozen=True)
class MoeFfn(Ffn):
    """Routed experts with optional shared ones."""

    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    n_shared_experts: int = 0
    shared_intermediate_size: int = 0
    """Intermediate size of all shared experts together; 0 if there are none."""
    zero_experts: int = 0
    """Further slots of the router that cost nothing (LongCat); picks fall on them too."""
    n_group: int = 1
    topk_group: int = 1
    bias: bool = False
    shared_gate: bool = False
    """True if one output per token scales the shared expert (Qwen2 MoE, Qwen3-Next, Qwen3.5)."""
    name: ClassVar[str] = "experts"

    @property
    def slots(self) -> int:
        """Outputs of the router."""
        return self.n_routed_experts + self.zero_experts

    @property
    def routed_share(self) -> float:
        """Share of the routed experts that one token uses; picks of zero experts do not count."""
        return self.num_experts_per_tok / self.slots

    @property
    def real_picks(self) -> float:
        """Picks of a token that compute something: zero experts take their share."""
        return self.num_experts_per_tok * self.n_routed_experts / self.slots

    def touched_experts(self, tokens: float) -> float:
        """Return the expected number of different experts that `tokens` tokens pick, E(1 - (1 - k/E)^B).

        Uniform, independent routing; slots of zero-cost experts take their share of the picks.
        """
        return self.n_routed_experts * (1 - (1 - self.routed_share) ** tokens)

    def expert_params(self, hidden: int) -> int:
        """Return the parameters of one routed expert (a gated MLP)."""
        return sum(part.rows * part.columns for part in self.routed_parts(hidden))

    def parts(self, hidden: int) -> list[Part]:
        """Return router, shared expert and routed experts."""
        made = [self._router(hidden), *self._shared(hidden), *self.routed_parts(hidden)]
        return [*made, Part("plain", self.slots)] if self.bias else made

    def routed_parts(self, hidden: int) -> list[Part]:
        """Return the parameters of routed experts."""
        width, experts, share = self.moe_intermediate_size, self.n_routed_experts, self.routed_share
        made = [Part("routed_expert", 3 * width, hidden, "experts", ROUTED, active=share, copies=experts)]
        if self.bias:
            made.append(Part("routed_expert", 2 * width + hidden, 1, "experts", active=share, copies=experts))
        return made

    def _router(self, hidden: int) -> Part:
        """The matrix that chooses experts; zero experts are among its outputs."""
        return Part("plain", self.slots, hidden, "none", "router gate")

    def _shared(self, hidden: int) -> list[Part]:
        """The matrices of the shared experts, which are one MLP, and their gate."""
        if not self.shared_intermediate_size:
            return []
        made = mlp_parts("shared_expert", _SHARED, self.shared_intermediate_size, hidden)
        return made + [Part("plain", 1, hidden, "none", "shared expert gate")] * self.shared_gate

    def entry(self, at: Shard) -> Block:
        """Return the norm, the router, and the choice of experts."""
        topk = 4 * self.slots + 8 * self.num_experts_per_tok
        chosen = [Rows("router top-k", topk, "topk", self.slots)]
        return Block([self._router(at.hidden)], {"": [input_norm(at)], "router gate": chosen})

    def body(self, at: Shard) -> Block:
        """Return the shared expert, whose sum over ranks is that of the routed ones."""
        parts = self._shared(at.hidden)
        if not parts:
            return Block([], {})
        added = Rows("shared expert sum", 3 * at.hidden * at.width, "add", at.hidden, only_measured=True)
        last = "shared expert gate" if self.shared_gate else f"{_SHARED} down"
        after = {
            f"{_SHARED} up": [mlp_activation(_SHARED, parts, at)],
            last: [added],
        }
        return Block(parts, after)

    def shape(self, hidden: int, tp: int) -> ExpertShape:
        """Return the routed experts as a profile measures them."""
        return ExpertShape(
            hidden, self.moe_intermediate_size, self.n_routed_experts, self.num_experts_per_tok, tp
        )

    def activation_values(self, step: LargestStep) -> int:
        """Return both buffers of the experts: each pick's hidden state or activation, and its gate and up
        or its output (`workspace_shapes` of vLLM's expert kernels). Kernels without lasting buffers reuse
        the larger one for the output."""
        width = shares(self.moe_intermediate_size, step.expert_cut)
        larger = max(2 * width, step.hidden_size)
        smaller = max(width, step.hidden_size) if step.keeps_expert_buffers else width
        return self.num_experts_per_tok * (larger + smaller)

    @property
    def hidden_states(self) -> int:
        """The block's input, the residual and the output, and the output of shared experts."""
        return 4 if self.shared_intermediate_size else 3

    def modules(self) -> dict[str, list[Module]]:
        """Return the matrices of one routed expert, and of the shared ones."""
        parts = {"routed_experts": [_expert(name) for name in GATED]}
        if self.shared_intermediate_size:
            places = ("mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert")
            parts["shared_experts"] = [tuple(f"{place}.{name}" for place in places) for name in GATED]
        return parts

    @property
    def words(self) -> str:
        """Experts, their width, and how many a token uses."""
        zero = f" (+ {self.zero_experts} zero)" if self.zero_experts else ""
        shared = f", {self.n_shared_experts} shared" if self.n_shared_experts else ""
        picks = f"top {self.num_experts_per_tok}{shared}"
        return f"{self.n_routed_experts}{zero} experts of {self.moe_intermediate_size}, {picks}"


def _expert(name: str) -> Module:
    places = ("mlp.experts", "feed_forward.experts", "block_sparse_moe.experts")
    one = [f"{place}.0.{name}" for place in places[:2]] + [f"{places[2]}.0.{_MIXTRAL[name]}"]
    return (*one, *(f"{place}.{_FUSED[name]}" for place in places))
