"""What a memory ledger depends on, and what it is made of."""

from __future__ import annotations

from dataclasses import dataclass

from simserve.hardware import GpuSpec
from simserve.model.draft import DraftMemory
from simserve.model.dtypes import WeightsDtype, WeightTypes, weight_types
from simserve.model.kv_groups import KvGroups
from simserve.model.memory_rules import VLLM, MemoryRules
from simserve.model.parallel import Parallelism
from simserve.model.spec import ModelSpec


@dataclass(frozen=True)
class MemoryLine:
    """One use of memory."""

    name: str
    bytes: int
    basis: str
    """Formula, source or named assumption."""


@dataclass(frozen=True)
class MemorySettings:
    """Everything that the ledger depends on."""

    spec: ModelSpec
    gpu: GpuSpec
    parallelism: Parallelism
    weights_dtype: WeightsDtype
    kv_dtype: str
    block_size: int
    gpu_memory_utilization: float
    max_num_batched_tokens: int
    max_num_seqs: int
    rules: MemoryRules = VLLM
    redundant_experts: int = 0
    sequence_tokens: int | None = None
    experts_dtype: str | None = None
    """Type of routed experts where it differs from `weights_dtype`."""
    kv_groups: KvGroups | None = None
    """Groups of layers that share the blocks, where the engine keeps window layers apart."""
    attention_only: bool = False
    """True: FFN layers are on other GPUs (see `ffn_ledger`); norms and routers stay."""
    draft: DraftMemory | None = None
    """What a model that drafts tokens takes."""
    adapter_bytes: int = 0
    """What slots for LoRA adapters take of each GPU (see `lora`)."""
    max_model_len: int | None = None
    """Longest sequence; None: the model's."""
    moe_backend: str = ""
    """Kernels of MXFP4 experts; empty: those that the release takes on this GPU."""
    enforce_eager: bool = False
    """True: there are no CUDA graphs."""
    full_graphs: bool = True
    """False: only pieces of layers are captured (`cudagraph_mode: PIECEWISE`)."""

    @property
    def types(self) -> WeightTypes:
        """The type of every part of the weights."""
        return weight_types(self.weights_dtype, self.experts_dtype)

    @property
    def value_bytes(self) -> int:
        """Bytes of a hidden value."""
        return 4 if self.types.activation == "fp32" else 2

    @property
    def mxfp4_kernels(self) -> str:
        """As which kernels MXFP4 experts are held."""
        if self.moe_backend or self.rules.mxfp4 == "plain":
            return self.moe_backend or "plain"
        if self.rules.mxfp4 == "marlin" or not 90 <= self.gpu.sm_arch < 110:
            return "marlin"
        return "trtllm" if self.gpu.sm_arch >= 100 else "triton"

    @property
    def marlin_fp8(self) -> bool:
        """True if fp8 weights go through Marlin: the GPU has no units for fp8 (vLLM)."""
        return self.rules.activation_inside and self.gpu.sm_arch < 89
