"""What one GPU runs in a step: kernels by token count, kernels by sequence count, attention layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from simserve.latency.costs import Cost, LinearOp
from simserve.latency.grid import Float64
from simserve.latency.kernels.beside import ChunkBeside, DecodesBeside
from simserve.latency.kernels.experts import ExpertLoad
from simserve.latency.kernels.machine import Machine
from simserve.model.parallel import Parallelism


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


class AttentionLayers(NamedTuple):
    """`times` layers with the same attention kernels."""

    name: str
    decode: DecodeKernel
    prefill: PrefillKernel
    times: int


@dataclass(frozen=True)
class Setting:
    """What every block needs to know beside the architecture."""

    machine: Machine
    hidden: int
    parallel: Parallelism
    weights_dtype: str
    kv_dtype: str
    experts_dtype: str
    expert_load: ExpertLoad
    gpus_per_node: int

    @property
    def activation_dtype(self) -> str:
        """The dtype in which hidden states travel."""
        return "fp16" if self.weights_dtype == "fp16" else "bf16"


@dataclass
class Plan:
    """The kernels of one pipeline stage, on one GPU."""

    per_token: list[LinearOp] = field(default_factory=list)
    per_sequence: list[LinearOp] = field(default_factory=list)
    attention: list[AttentionLayers] = field(default_factory=list)
    layers: int = 0

    def add(self, ops: list[LinearOp], times: int) -> None:
        """Add per-token kernels that `times` layers run."""
        self.per_token += [op._replace(times=op.times * times) for op in ops]
