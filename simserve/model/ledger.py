"""How the ledger of one GPU is drawn up, whether or not anything is left for the KV cache.

N = floor((u x HBM - weights - activation peak - graphs - other) / (block size x KV per token)), minus the
null block (vLLM). The pipeline stage with the fewest blocks decides, as in vLLM, where all stages have equal
pools. Every line says what it rests on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simserve.errors import ScenarioError
from simserve.model.kv import KvFootprint, stage_footprint
from simserve.model.kv_groups import KvGroups
from simserve.model.memory_lines import lines_of_stage
from simserve.model.memory_settings import MemoryLine, MemorySettings
from simserve.model.stages import Stage, pipeline_stages
from simserve.model.weights import WeightBytes, weight_bytes_per_stage

STATE_SEQUENCE_TOKENS = 2048
"""Tokens per sequence over which constant states are spread if nothing better is known [assumption]."""


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


def raw_ledger(settings: MemorySettings) -> MemoryLedger:
    """Return the ledger of the stage with the fewest blocks, even if nothing is left (blocks then <= 0)."""
    weights = weight_bytes_per_stage(
        settings.spec,
        settings.parallelism,
        settings.weights_dtype,
        redundant_experts=settings.redundant_experts,
        experts_dtype=settings.experts_dtype,
        mxfp4=settings.mxfp4_kernels,
        marlin_fp8=settings.marlin_fp8,
    )
    if settings.attention_only:
        weights = [replace(one, dense_ffn=0, shared_expert=0, routed_expert=0) for one in weights]
    stages = pipeline_stages(settings.spec, settings.parallelism.pp)
    ledgers = (_stage_ledger(settings, *pair) for pair in zip(stages, weights, strict=True))
    return min(ledgers, key=lambda ledger: ledger.kv_blocks)


def _stage_ledger(settings: MemorySettings, stage: Stage, weights: WeightBytes) -> MemoryLedger:
    lines = lines_of_stage(settings, stage, weights)
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
