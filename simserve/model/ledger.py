"""How the ledger of one GPU is drawn up, whether or not anything is left for the KV cache.

N = floor((u x HBM - weights - activation peak - graphs - other) / (block size x KV per token)), minus the
null block (vLLM). The pipeline stage with the fewest blocks decides, as in vLLM, where all stages have equal
pools. Every line says what it rests on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simserve.errors import ScenarioError
from simserve.hardware import GpuSpec
from simserve.model.activation import FullStep, activation_peak
from simserve.model.draft import DraftMemory
from simserve.model.dtypes import WeightsDtype, WeightTypes, weight_types
from simserve.model.kv import KvFootprint, stage_footprint
from simserve.model.kv_groups import KvGroups
from simserve.model.memory_rules import (
    CONTEXT_BYTES,
    VLLM,
    MemoryRules,
    communicator_bytes,
    graph_bytes,
    nccl_bytes,
    rotary_table_bytes,
)
from simserve.model.parallel import Parallelism
from simserve.model.spec import ModelSpec
from simserve.model.stages import Stage, pipeline_stages
from simserve.model.weights import WeightBytes, weight_bytes_per_stage
from simserve.units import GIB

STATE_SEQUENCE_TOKENS = 2048
"""Tokens per sequence over which constant states are spread if nothing better is known [assumption]."""


_KERNELS_WITHOUT_BUFFERS = ("int4", "nf4", "mxfp4")
"""Types of experts whose kernels take their buffers from the allocator step by step (vLLM 0.19)."""
_MULTIPROCESSORS = 132
"""Taken where a GPU does not say [assumption: an H100's]."""


@dataclass(frozen=True)
class MemoryLine:
    """One use of memory."""

    name: str
    bytes: int
    basis: str
    """Formula, source or named assumption."""


@dataclass(frozen=True)
class MemoryLedger:
    """The memory of one GPU of the deciding pipeline stage. The lines add up to the HBM."""

    hbm_bytes: int
    hbm_basis: str
    lines: tuple[MemoryLine, ...]
    """Everything that is in the HBM, in order; "KV cache" is what the blocks can use."""
    kv_bytes: int
    """Bytes of the KV cache."""
    kv_bytes_per_token: float
    """Bytes that one token takes on this GPU."""
    block_size: int
    kv_blocks: int
    """Usable blocks of one rank's pool, the null block taken off; 0 or less never leaves `memory_ledger`."""
    stage: int
    """Index of the pipeline stage."""
    footprint: KvFootprint
    kv_groups: KvGroups | None = None
    """Groups of layers that share the blocks; None: a block holds its tokens in all layers."""
    longest_position: int = 0
    """Longest sequence of the model."""

    @property
    def kv_tokens(self) -> int:
        """Tokens of one sequence that the usable blocks hold (with groups, at most the model's maximum)."""
        if self.kv_groups is None:
            return self.kv_blocks * self.block_size
        return self.kv_groups.longest(self.kv_blocks, self.block_size, self.longest_position)

    def capacity_tokens(self, longest: int) -> int:
        """Return the tokens that the usable blocks hold together, in sequences of `longest` tokens."""
        if self.kv_groups is None:
            return self.kv_blocks * self.block_size
        return self.kv_blocks * longest // self.kv_groups.sequence_blocks(longest, self.block_size)

    def line(self, name: str) -> MemoryLine:
        """Return the line of that name."""
        return next(line for line in self.lines if line.name == name)


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


def raw_ledger(settings: MemorySettings) -> MemoryLedger:
    """Return the ledger of the stage with the fewest blocks, even if nothing is left (blocks then <= 0)."""
    weights = weight_bytes_per_stage(
        settings.spec,
        settings.parallelism,
        settings.weights_dtype,
        redundant_experts=settings.redundant_experts,
        experts_dtype=settings.experts_dtype,
        mxfp4=settings.mxfp4_kernels,
    )
    if settings.attention_only:
        weights = [replace(one, dense_ffn=0, shared_expert=0, routed_expert=0) for one in weights]
    stages = pipeline_stages(settings.spec, settings.parallelism.pp)
    ledgers = (_stage_ledger(settings, *pair) for pair in zip(stages, weights, strict=True))
    return min(ledgers, key=lambda ledger: ledger.kv_blocks)


def _stage_ledger(settings: MemorySettings, stage: Stage, weights: WeightBytes) -> MemoryLedger:
    lines = [*_fixed_lines(settings), *_weight_lines(settings, weights), *_overhead_lines(settings, stage)]
    if settings.draft is not None:
        lines.append(MemoryLine("draft weights", settings.draft.weight_bytes, settings.draft.words))
    kv_bytes = settings.gpu.hbm_bytes - sum(line.bytes for line in lines)
    footprint = stage_footprint(settings.spec, stage.layers, settings.parallelism.tp, settings.kv_dtype)
    groups = settings.kv_groups
    per_token, basis = _kv_per_token(settings, footprint)
    if settings.draft is not None and settings.draft.kv_bytes_per_token:
        per_token += settings.draft.kv_bytes_per_token
        basis += f", and {settings.draft.kv_bytes_per_token:g} B for the draft"
    if per_token == 0:
        raise ScenarioError(f"{settings.spec.name} has a pipeline stage without a KV cache; use fewer stages")
    block_bytes = settings.block_size * per_token
    if groups is not None:
        block_bytes /= len(groups.windows)
    lines.append(MemoryLine("KV cache", kv_bytes, basis))
    return MemoryLedger(
        hbm_bytes=settings.gpu.hbm_bytes,
        hbm_basis=f"{settings.gpu.hbm.source}, {settings.gpu.hbm.date}",
        lines=tuple(lines),
        kv_bytes=kv_bytes,
        kv_bytes_per_token=per_token,
        block_size=settings.block_size,
        kv_blocks=int(kv_bytes // block_bytes) - 1,
        stage=stage.index,
        footprint=footprint,
        kv_groups=groups,
        longest_position=settings.spec.max_position_embeddings,
    )


def _without_ffns(spec: ModelSpec) -> ModelSpec:
    """Return the model with its attention layers alone."""
    return replace(spec, layers=tuple(replace(group, ffns=()) for group in spec.layers))


def _fixed_lines(settings: MemorySettings) -> list[MemoryLine]:
    share = settings.gpu_memory_utilization
    outside = settings.gpu.hbm_bytes - int(share * settings.gpu.hbm_bytes)
    holds = ["the CUDA context"]
    if not settings.rules.activation_inside:
        holds.append("activations")
    if not settings.rules.graphs_inside:
        holds.append("CUDA graphs")
    basis = f"1 - {share:g} of the HBM stays outside ({settings.rules.name}): {', '.join(holds)}"
    return [MemoryLine("outside the share", outside, basis)]


def _weight_lines(settings: MemorySettings, weights: WeightBytes) -> list[MemoryLine]:
    degrees = settings.parallelism
    types = settings.types
    spread = f"tp {degrees.tp}"
    experts = f"spread over tp x dp = {degrees.tp * degrees.dp} GPUs, ep {degrees.ep}"
    bits = 8 * settings.value_bytes
    padded = types.routed_experts == "mxfp4" and settings.mxfp4_kernels != "plain"
    held = f" padded for {settings.mxfp4_kernels} kernels" if padded else ""
    ends = f"{bits} bit" if types.head in ("fp32", "fp16", "bf16") else f"16 bit, head {types.head}"
    rows = [
        ("embedding and head", weights.embedding_and_head, f"{ends}, {spread}"),
        (
            "attention weights",
            weights.attention,
            f"{types.attention}, {spread}, KV heads and latents copied as needed",
        ),
        ("dense MLP weights", weights.dense_ffn, f"{types.dense}, {spread}"),
        ("shared expert weights", weights.shared_expert, f"{types.shared_experts}, {spread}"),
        ("routed expert weights", weights.routed_expert, f"{types.routed_experts}{held}, {experts}"),
        ("norms and routers", weights.plain, f"{bits} bit, on every GPU"),
        ("image encoder", weights.vision, f"{bits} bit, {spread}, its projector on every GPU"),
        ("rotary tables", rotary_table_bytes(settings.spec, bits // 8), f"{bits} bit, every position"),
    ]
    return [MemoryLine(name, size, basis) for name, size, basis in rows if size]


def _overhead_lines(settings: MemorySettings, stage: Stage) -> list[MemoryLine]:
    degrees, rules, arch = settings.parallelism, settings.rules, settings.gpu.sm_arch
    lines = []
    if rules.activation_inside:
        spec = _without_ffns(settings.spec) if settings.attention_only else settings.spec
        peak = activation_peak(spec, _full_step(settings), rules, first=stage.first, last=stage.last)
        lines.append(MemoryLine("activation peak", peak.bytes, peak.basis))
    if rules.graphs_inside and not settings.enforce_eager:
        size, basis = graph_bytes(sum(stage.layers), settings.max_num_seqs, arch, settings.full_graphs)
        lines.append(MemoryLine("CUDA graphs", size, basis))
    if rules.of_free_memory:
        return [*lines, _taken_before(settings)]
    ranks = degrees.tp * degrees.dp  # stages connect after the memory is measured
    peers = rules.peer_bytes if degrees.tp > 1 and settings.gpu.nvlink else 0
    peers = peers or nccl_bytes(ranks)
    kernels = rules.kernels(arch, degrees.tp * degrees.pp * degrees.dp)
    basis = f"kernels and workspaces {kernels / GIB:.2f} GiB"
    if peers:
        basis += f", {peers / GIB:.2f} GiB for the communication of {ranks} ranks"
    return [*lines, MemoryLine("other", kernels + peers, basis)]


def _taken_before(settings: MemorySettings) -> MemoryLine:
    """Return what the share loses to what is there before it is taken."""
    degrees, share = settings.parallelism, settings.gpu_memory_utilization
    ranks = degrees.tp * degrees.pp * degrees.dp
    peers = communicator_bytes(ranks, settings.gpu.nvlink is not None)
    basis = f"{share:g} of what is there before loading: CUDA context {CONTEXT_BYTES / GIB:.2f} GiB"
    if peers:
        basis += f", {peers / GIB:.2f} GiB for the communication of {ranks} ranks"
    return MemoryLine("other", round(share * (CONTEXT_BYTES + peers)), f"{basis} [assumption: as of vLLM]")


def _full_step(settings: MemorySettings) -> FullStep:
    lasting = not settings.types.of("routed_expert").startswith(_KERNELS_WITHOUT_BUFFERS)
    processors = settings.gpu.multiprocessors
    return FullStep(
        settings.parallelism,
        tokens=settings.max_num_batched_tokens,
        sequences=settings.max_num_seqs,
        longest=settings.max_model_len or settings.spec.max_position_embeddings,
        hidden_size=settings.spec.hidden_size,
        value_bytes=settings.value_bytes,
        sm_arch=settings.gpu.sm_arch,
        multiprocessors=int(processors.value) if processors else _MULTIPROCESSORS,
        keeps_expert_buffers=settings.rules.keeps_expert_buffers and lasting,
    )


def _kv_per_token(settings: MemorySettings, footprint: KvFootprint) -> tuple[float, str]:
    tokens, groups = settings.sequence_tokens, settings.kv_groups
    if groups is not None:
        per_layer = footprint.bytes_per_token / settings.spec.num_layers
        per_token = per_layer * groups.layers * len(groups.windows)
        return (
            per_token,
            f"{settings.kv_dtype}, a block holds the tokens of one of the groups: {groups.words}",
        )
    per_token = footprint.mean_bytes_per_token(tokens)
    basis = f"{settings.kv_dtype}, {per_token:g} B per token and rank"
    if tokens is not None:
        return per_token, f"{basis} in sequences of {tokens} tokens"
    if footprint.bounded_bytes:
        basis += ", windows and chunks counted as not yet full"
    if footprint.state_bytes_per_sequence:
        per_token += footprint.state_bytes_per_sequence / STATE_SEQUENCE_TOKENS
        basis = f"{settings.kv_dtype}, {per_token:g} B per token and rank, one constant state per "
        basis += f"{STATE_SEQUENCE_TOKENS} tokens [assumption]"
    return per_token, basis
