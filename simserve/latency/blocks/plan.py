"""What one GPU runs in a step: kernels by token count, kernels by sequence count, attention layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from simserve.core.operation import Operation
from simserve.latency.kernels.collective import collective
from simserve.latency.kernels.decode import WalkTail
from simserve.latency.kernels.experts import ExpertCounts, ExpertLoad
from simserve.latency.kernels.gemm import elementwise, gemm
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mixed import ChunkBeside, DecodesBeside, MeasuredMixes
from simserve.latency.tables.grid import Float64
from simserve.latency.tables.roofline import BYTES, Cost, LinearOp, Weights
from simserve.model.dtypes import WeightTypes
from simserve.model.layers.base import Kind, Part, Shard, products
from simserve.model.parts import head_part
from simserve.model.spec import ModelSpec, Parallelism


class DecodeKernel(Protocol):
    """Attention of one layer for sequences that compute one token each."""

    def cost(self, sequences: int, context: Float64) -> Cost:
        """Return the cost of `sequences` sequences at each mean context (float64[n])."""
        ...


class PrefillKernel(Protocol):
    """Attention of one layer for prompt chunks."""

    def chunk_us(self, batch: int, new: int, cached: int) -> tuple[float, int]:
        """Return microseconds, and their provenance, of one of `batch` equal chunks computed together."""
        ...

    def fresh(self, batch: int, lengths: Float64) -> Cost:
        """Return what `chunk_us` says of prompts of these lengths (float64[n]) without cached tokens."""
        ...

    def decode_beside(self, sequences: int, context: Float64) -> DecodesBeside | None:
        """Return what decodes bring into a call with chunks; None: they cost what they cost alone."""
        ...

    def chunk_beside(self, batch: int, new: int, cached: int) -> ChunkBeside:
        """Return what one of `batch` equal chunks brings into a call with decodes."""
        ...


All2All = Literal["deepep", "deepep_low_latency", "deepep_normal", "nccl", "allgather", "analytic"]
"""How tokens get to the GPUs of their experts and back. deepep: low-latency kernels for small steps."""


class GroupKernels(Protocol):
    """The kernels of one MoE layer whose time more than one rank decides."""

    counts: ExpertCounts | None
    """A rank's experts by explicit counts, where they were measured so."""
    weights: Weights
    """Of a rank's routed experts."""

    def wire(self, sent: Float64, received: Float64) -> tuple[Cost, Cost]:
        """Return the cost of getting tokens to their experts, and back.

        `sent` by the fullest rank decide which kernels run; `received` (float64[n] both) is how many each
        rank would have in an even exchange that takes as long.
        """
        ...

    def experts(self, tokens: Float64, group_tokens: Float64) -> Cost:
        """Return the cost of the routed experts on a rank that gets its even part of `group_tokens`.

        `tokens` of the fullest rank decide which kernels run.
        """
        ...

    def ranks_per_port(self, tokens: int) -> int:
        """Return the ranks that receive through one port of what bounds the exchange; 0: all get the same."""
        ...

    def share_of_sms(self, tokens: int) -> float:
        """Return the share of a GPU's multiprocessors that dispatch and combine keep from other kernels."""
        ...


class GroupLayers(NamedTuple):
    """`times` MoE layers at which the ranks of a group meet."""

    kernels: GroupKernels
    shared: list[LinearOp]
    """The shared expert, where it can run beside dispatch."""
    beside: list[LinearOp]
    """Kernels by tokens that the MoE branch may run beside (ScMoE)."""
    beside_attentions: float
    """Attention layers (of all attention of the model) that it may run beside."""
    times: int


class AttentionLayers(NamedTuple):
    """`times` layers with the same attention kernels."""

    name: str
    decode: DecodeKernel
    prefill: PrefillKernel
    times: int
    mixes: MeasuredMixes | None = None
    """How decodes beside a chunk were measured, where they were."""
    tail: WalkTail | None = None
    """What unequal contexts add, where a kernel's longest tiles end alone."""
    products: tuple[LinearOp, ...] = ()
    """Products that are part of the attention, whichever kernel computes them."""


@dataclass(frozen=True)
class Setting:
    """What every block needs to know beside the architecture."""

    machine: Machine
    hidden: int
    parallel: Parallelism
    types: WeightTypes
    """Of every part, by the names of kernels."""
    kv_dtype: str
    expert_load: ExpertLoad
    gpus_per_node: int
    lockstep: bool = False
    """True: what depends on several ranks is kept apart, in `Plan.groups`."""
    all2all: All2All = "deepep"
    redundant_experts: int = 0
    remote_ffn: bool = False
    """True: FFN layers run on other GPUs; only their norms and routers are part of this plan."""
    max_model_len: int = 0
    """Longest context that the engine was started with."""

    @property
    def activation_dtype(self) -> str:
        """The dtype in which hidden states travel."""
        return self.types.activation

    def dtype_of(self, kind: Kind) -> str:
        """Return the dtype of the weights of that kind."""
        return self.types.of(kind)

    @property
    def shard(self) -> Shard:
        """What the layers need to know of a GPU's part of them."""
        return Shard(self.hidden, self.parallel.tp, BYTES[self.activation_dtype], BYTES[self.kv_dtype])

    def gemms(self, parts: Iterable[Part]) -> dict[str, LinearOp]:
        """Return the products of these parts on one GPU, by name."""
        return {
            name: gemm(self.machine, name, self.dtype_of(it.kind), it.n, it.k)._replace(
                core_to_dispatch=it.after_core
            )
            for name, it in products(parts, self.parallel.tp).items()
        }


@dataclass
class Plan:
    """The kernels of one pipeline stage, on one GPU."""

    per_token: list[LinearOp] = field(default_factory=list)
    per_sequence: list[LinearOp] = field(default_factory=list)
    attention: list[AttentionLayers] = field(default_factory=list)
    layers: int = 0
    groups: list[GroupLayers] = field(default_factory=list)

    def weights(self) -> Iterator[tuple[int, Weights]]:
        """Yield (times, weights) of every product of a step."""
        for op in (*self.per_token, *self.per_sequence):
            if op.weights is not None:
                yield op.times, op.weights
        for layers in self.attention:
            for op in layers.products:
                if op.weights is not None:
                    yield layers.times * op.times, op.weights
        for group in self.groups:
            yield group.times, group.kernels.weights
            for op in group.shared:
                if op.weights is not None:
                    yield group.times * op.times, op.weights

    def add(self, ops: list[LinearOp], times: int) -> None:
        """Add per-token kernels that `times` layers run."""
        self.per_token += [op._replace(times=op.times * times) for op in ops]


# What surrounds the layers: embedding, final norm, output head, sampling.
#
# The head runs once for each sequence that gets a token. vLLM splits the vocabulary over the TP ranks and
# gathers the logits.

SAMPLING_PASSES = 2
"""How often sampling reads or writes the fp32 logits (LLMServingSim's profiles, 2026-08: 0.6-0.8 us per
sequence of 128256 or 151936 logits on RTX PRO 6000, which is two passes)."""
SAMPLING_START_US = 15.0
"""The kernels of a sampling step for one sequence (same source: 12-26 us)."""


def add_embedding(plan: Plan, setting: Setting) -> None:
    """Add the embedding look-up of the first pipeline stage."""
    row_bytes = 2 * setting.hidden * BYTES[setting.activation_dtype]
    plan.per_token.append(elementwise(setting.machine, "embedding", row_bytes, "embedding"))


def add_head(plan: Plan, spec: ModelSpec, setting: Setting) -> None:
    """Add final norm, output head and sampling of the last pipeline stage (the head stays at 16 bit)."""
    machine, tp, width = setting.machine, setting.parallel.tp, BYTES[setting.activation_dtype]
    plan.per_sequence.append(elementwise(machine, "final norm", 2 * setting.hidden * width, "rmsnorm"))
    head = setting.gemms([head_part(spec)]).values()
    plan.per_sequence += [op._replace(group=Operation.ENDS) for op in head]
    if tp > 1:
        gathered = head_part(spec).local(tp)[0] * tp * width
        plan.per_sequence.append(collective(machine, "logits all-gather", "all_gather", tp, gathered))
    logits_bytes = SAMPLING_PASSES * 4 * spec.vocab_size
    plan.per_sequence.append(elementwise(machine, "sampling", logits_bytes, "argmax", SAMPLING_START_US))
