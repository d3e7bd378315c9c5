"""The memory ledger of one GPU: where its bytes go, and how many KV blocks are left.

The sums are in `ledger`; here the settings are checked, and a deployment that does not fit is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simserve.errors import ScenarioError
from simserve.model.kv import KvFootprint, KvGroups, PackedBlocks, stage_footprint
from simserve.model.memory_lines import MemoryLine, MemorySettings, lines_of_stage
from simserve.model.memory_rules import CONTEXT_BYTES, communicator_bytes, graph_bytes
from simserve.model.spec import Parallelism, Stage, pipeline_stages
from simserve.model.weights import WeightBytes, weight_bytes_per_stage
from simserve.units import GB, GIB

# How the ledger of one GPU is drawn up, whether or not anything is left for the KV cache.
#
# N = floor((u x HBM - weights - activation peak - graphs - other) / (block size x KV per token)), minus the
# null block (vLLM). The pipeline stage with the fewest blocks decides, as in vLLM, where all stages have
# equal
# pools. Every line says what it rests on.

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
    packed: PackedBlocks | None = None
    """Blocks that caches of unequal kinds share, for which `kv_blocks` is what their sequences leave."""
    longest_position: int = 0
    """Longest sequence of the model."""

    @property
    def kv_tokens(self) -> int:
        """Tokens of one sequence that the usable blocks hold (with groups, at most the model's maximum)."""
        if self.packed is not None:
            return self.packed.longest(self.kv_bytes)
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
    groups, packed = settings.kv_groups, _packed(settings, stage)
    if packed is not None:
        lines += _packed_lines(packed)
        kv_bytes = settings.gpu.hbm_bytes - sum(line.bytes for line in lines)
    per_token, basis = _kv_per_token(settings, footprint, packed)
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
        packed=packed,
        longest_position=settings.spec.max_position_embeddings,
    )


def _packed(settings: MemorySettings, stage: Stage) -> PackedBlocks | None:
    """Return the blocks that the caches of compressed attention share; None without such attention."""
    if not settings.spec.has_compressed:
        return None
    rule = settings.rules.packed
    if rule is None:
        raise ScenarioError(
            f"{settings.spec.name} on {settings.rules.name} is not modelled: it does not divide its "
            "memory among the caches of compressed attention; the newest releases do"
        )
    return rule(
        settings.spec, stage, settings.kv_dtype, settings.max_num_batched_tokens, settings.max_num_seqs
    )


def _packed_lines(packed: PackedBlocks) -> list[MemoryLine]:
    """Return what the blocks hold beside the tokens of sequences."""
    lines = []
    if packed.step_blocks:
        size = packed.step_blocks * packed.block_bytes
        lines.append(
            MemoryLine(
                "windows in flight", size, f"{packed.step_blocks} blocks, at most, of the steps in flight"
            )
        )
    if packed.fixed_bytes:
        lines.append(MemoryLine("compressor states", packed.fixed_bytes, "fp32, of every request slot"))
    return lines


def _kv_per_token(
    settings: MemorySettings, footprint: KvFootprint, packed: PackedBlocks | None
) -> tuple[float, str]:
    if packed is not None:
        length = settings.sequence_tokens or STATE_SEQUENCE_TOKENS
        assumed = "" if settings.sequence_tokens or not packed.sequence_blocks else " [assumption]"
        return packed.bytes_per_token(length), (
            f"{settings.kv_dtype}, {packed.words}, in sequences of {length} tokens{assumed}"
        )
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


# What lies outside vLLM's share of a GPU: there before the engine looks, or taken once the pool is sized.
#
# A start whose pool is sized still runs out of memory, in the sampler's warm-up, if 1 - share cannot hold it.
# The lines are the least that starts on H100 showed (vLLM 0.19, llm-d-planner's sweep), so that a start is
# refused only where it cannot succeed; fragments of the allocator come on top.

_EXPERT_COMMUNICATORS = round(0.48 * GIB)
"""Those of the ranks that share experts (Mixtral and Kimi-VL, tp 2)."""


def outside_lines(settings: MemorySettings, stage: int) -> tuple[MemoryLine, ...]:
    """Return what a GPU of that stage must hold outside the share; nothing of engines that reserve for it."""
    rules, degrees = settings.rules, settings.parallelism
    if not rules.activation_inside:
        return ()
    lines = [MemoryLine("CUDA context", CONTEXT_BYTES, "one H100")]
    ranks = degrees.tp * degrees.pp * degrees.dp
    if ranks > 1:
        size = communicator_bytes(ranks, settings.gpu.nvlink is not None)
        lines.append(MemoryLine("communicators", size, f"{ranks} ranks"))
    if degrees.tp * degrees.dp > 1 and settings.gpu.nvlink and settings.spec.moes:
        lines.append(MemoryLine("communicators of experts", _EXPERT_COMMUNICATORS, "tp x dp ranks"))
    if not rules.graphs_inside and not settings.enforce_eager:
        layers = sum(pipeline_stages(settings.spec, degrees.pp)[stage].layers)
        size, basis = graph_bytes(layers, settings.max_num_seqs, settings.gpu.sm_arch, settings.full_graphs)
        lines.append(MemoryLine("CUDA graphs", size, basis))
    return tuple(lines)


def outside_shortage(settings: MemorySettings, ledger: MemoryLedger) -> str:
    """Return why memory runs out after the pool is made, in words; empty if it does not."""
    room = ledger.line("outside the share").bytes
    lines = outside_lines(settings, ledger.stage)
    needed = sum(line.bytes for line in lines)
    if needed <= room:
        return ""
    parts = ", ".join(f"{line.name} {line.bytes / GIB:.2f}" for line in lines)
    largest = (1 - needed / ledger.hbm_bytes) // 0.01 / 100
    return (
        f"{room / GIB:.2f} GiB are left outside the share of {settings.gpu_memory_utilization:g}, and "
        f"{needed / GIB:.2f} GiB are needed there ({parts}): the engine would run out of memory after its "
        f"pool is made. gpu_memory_utilization of at most {largest:g} would leave room"
    )


# Why a model does not fit, in words and numbers, and what would make it fit.

_LARGEST_TP = 64


def explain_shortage(settings: MemorySettings, ledger: MemoryLedger, max_model_len: int | None) -> str:
    """Return the message for a ledger that holds fewer tokens than one request of `max_model_len` needs."""
    name, gpu = settings.spec.name, settings.gpu.name
    head = f"{name} does not fit on {gpu} with {_degrees(settings.parallelism)}"
    share = f"{settings.gpu_memory_utilization:g} of {settings.gpu.hbm_bytes / GB:.1f} GB"
    if ledger.kv_blocks > 0:
        cause = (
            f"one request of max_model_len = {max_model_len} tokens needs "
            f"{(max_model_len or 0) * ledger.kv_bytes_per_token / GB:.2f} GB of KV cache, and "
            f"{ledger.kv_bytes / GB:.2f} GB are left for it, {ledger.kv_tokens} tokens"
        )
    else:
        needed = sum(
            line.bytes for line in ledger.lines if line.name not in ("KV cache", "outside the share")
        )
        available = settings.gpu.hbm_bytes - ledger.line("outside the share").bytes
        cause = (
            f"weights and overheads need {needed / GB:.1f} GB per GPU and there are {available / GB:.1f} GB "
            f"({share}), with no room for a KV cache"
        )
    return f"{head} because {cause}. {_remedies(settings, ledger, max_model_len)}"


def _remedies(settings: MemorySettings, ledger: MemoryLedger, max_model_len: int | None) -> str:
    needed = max(1, max_model_len or 0)
    ways = [_wider(settings, needed)]
    if settings.weights_dtype in ("bf16", "fp16"):
        ways.append(_way("weights in fp8", replace(settings, weights_dtype="fp8"), needed))
    if settings.kv_dtype in ("bf16", "fp16") and ledger.kv_blocks > 0:
        ways.append(_way("a KV cache in fp8", replace(settings, kv_dtype="fp8"), needed))
    if ledger.kv_blocks > 0:
        ways.append(f"max_model_len of at most {ledger.kv_tokens}")
    known = [way for way in ways if way]
    if not known:
        return "Only a smaller model, more pipeline stages (pp) or larger GPUs would make it fit"
    return "It would fit with " + ", or ".join(known)


def _wider(settings: MemorySettings, needed_tokens: int) -> str | None:
    """The smallest tp that fits, at the same dp and pp, experts spreading over all GPUs if they do now."""
    degrees, tp = settings.parallelism, settings.parallelism.tp * 2
    while tp <= _LARGEST_TP:
        ep = degrees.ep * tp // degrees.tp if degrees.ep > 1 else 1
        wider = replace(settings, parallelism=replace(degrees, tp=tp, ep=ep))
        way = _way(f"tp {tp}, the smallest that does", wider, needed_tokens)
        if way:
            return way
        tp *= 2
    return None


def _way(words: str, settings: MemorySettings, needed_tokens: int) -> str | None:
    """`words` and the KV tokens that the settings leave; None if they do not help or are not possible."""
    try:
        tokens = raw_ledger(settings).kv_tokens
    except ScenarioError:  # degrees that do not divide the model
        return None
    return f"{words} ({tokens:,} KV tokens)" if tokens >= needed_tokens else None


def _degrees(parallelism: Parallelism) -> str:
    return ", ".join(f"{name} {value}" for name, value in vars(parallelism).items() if value > 1) or "tp 1"


__all__ = ["MemoryLedger", "MemoryLine", "memory_ledger"]


def memory_ledger(settings: MemorySettings) -> MemoryLedger:
    """Return the ledger of one GPU, in bytes.

    Raises `ScenarioError` if a setting is nonsense, if the model, or one request of `max_model_len` tokens,
    does not fit, or if too little is left outside the share.
    """
    spec, gpu, max_model_len = settings.spec, settings.gpu, settings.max_model_len
    _check(settings)
    ledger = raw_ledger(settings)
    if ledger.kv_tokens < max(1, max_model_len or 0):
        raise ScenarioError(explain_shortage(settings, ledger, max_model_len))
    if why := outside_shortage(settings, ledger):
        raise ScenarioError(f"{spec.name} does not start on {gpu.name}: {why}")
    return ledger


def _check(settings: MemorySettings) -> None:
    share = settings.gpu_memory_utilization
    if not 0 < share <= 1:
        raise ScenarioError("", "gpu_memory_utilization", share, "more than 0 and at most 1")
    for name in ("block_size", "max_num_batched_tokens", "max_num_seqs", "sequence_tokens"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ScenarioError("", name, value, "1 or more")
