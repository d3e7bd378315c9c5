"""The uses of one GPU's memory besides the KV cache, each with its basis."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simserve.errors import ScenarioError
from simserve.hardware import GpuSpec
from simserve.model.activation import FullStep, activation_peak
from simserve.model.draft import DraftMemory
from simserve.model.dtypes import WeightsDtype, WeightTypes, weight_types
from simserve.model.kv import KvGroups
from simserve.model.layers.base import Kind
from simserve.model.layers.mla import LATENT_UP
from simserve.model.memory_rules import (
    CONTEXT_BYTES,
    KERNELS_BYTES,
    MemoryRules,
    communicator_bytes,
    graph_bytes,
    nccl_bytes,
    rotary_table_bytes,
)
from simserve.model.parts import layer_parts
from simserve.model.spec import ModelSpec, Parallelism, Stage
from simserve.model.weights import WeightBytes, check_parallelism, weight_bytes_per_stage
from simserve.units import GB, GIB

# What a memory ledger depends on, and what it is made of.


@dataclass(frozen=True)
class MemoryLine:
    """One use of memory."""

    name: str
    bytes: int
    basis: str
    """Formula, source or named assumption."""
    weights_of: Kind | None = None
    """The part of the model whose weights these are, where they are of one part."""


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
    """Share of the GPU that the engine may use (SGLang: the static share)."""
    max_num_batched_tokens: int
    max_num_seqs: int
    rules: MemoryRules
    """Those of the engine's version."""
    redundant_experts: int = 0
    sequence_tokens: int | None = None
    """A typical length over which windows, chunks and constant states are spread; None: windows and chunks
    count as if they grew like full attention, which is never too little."""
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


_MULTIPROCESSORS = 132
"""Taken where a GPU does not say [assumption: an H100's]."""


def lines_of_stage(settings: MemorySettings, stage: Stage, weights: WeightBytes) -> list[MemoryLine]:
    """Return everything but the KV cache that is in the HBM of one GPU of a stage, in order."""
    lines = [*_fixed_lines(settings), *_weight_lines(settings, weights)]
    if absorbed := _absorbed_bytes(settings, stage):
        basis = "16 bit, what expands latents, for decoding without expanding them"
        lines.append(MemoryLine("absorbed attention", absorbed, basis))
    lines += _overhead_lines(settings, stage)
    if settings.adapter_bytes:
        lines.append(
            MemoryLine("adapter slots", settings.adapter_bytes, "16 bit, of the largest rank [assumed]")
        )
    if settings.draft is not None:
        lines.append(MemoryLine("draft weights", settings.draft.weight_bytes, settings.draft.words))
    return lines


def _absorbed_bytes(settings: MemorySettings, stage: Stage) -> int:
    """Return the 16-bit copies of the matrices that expand latents.

    In 16 bit vLLM takes views of them (`process_weights_after_loading` of its MLA attention, 0.19.0).
    """
    if settings.types.attention in ("bf16", "fp16", "fp32") and not settings.rules.copies_latents:
        return 0
    total = 0
    for group in stage.groups(settings.spec):
        for part in layer_parts(group, settings.spec.hidden_size):
            if part.product == LATENT_UP:
                rows, columns = part.local(settings.parallelism.tp)
                total += group.count * rows * columns * settings.value_bytes
    return total


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
    symmetric = degrees.tp > 1 and settings.gpu.nvlink is not None and arch >= 90
    peers = rules.peer_bytes if symmetric else 0
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
    own = 100 <= settings.gpu.sm_arch < 110  # TensorRT-LLM's kernels, which bring their own buffers
    lasting = not own and not settings.types.of("routed_expert").startswith(settings.rules.bufferless)
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


# The memory of an FFN GPU of attention-FFN disaggregation: weights, and no KV cache.


def ffn_ledger(
    spec: ModelSpec,
    gpu: GpuSpec,
    gpus: int,
    *,
    weights_dtype: WeightsDtype,
    experts_dtype: str | None,
    redundant_experts: int,
    share: float,
) -> tuple[MemoryLine, ...]:
    """Return the uses of one FFN GPU's memory in bytes; they add up to the HBM.

    Routed experts lie whole on the `gpus`, dense MLPs and shared experts are copied to each. `share` of the
    HBM may be used. Raises `ScenarioError` if they do not divide, or do not fit.
    """
    spread = Parallelism(dp=gpus, ep=gpus)
    try:
        check_parallelism(spec, spread, redundant_experts)
    except ScenarioError as error:
        raise ScenarioError(f"is not possible: {error}", "afd.ffn_gpus", gpus) from error
    (weights,) = weight_bytes_per_stage(
        spec, spread, weights_dtype, redundant_experts=redundant_experts, experts_dtype=experts_dtype
    )
    outside = gpu.hbm_bytes - int(share * gpu.hbm_bytes)
    types = weight_types(weights_dtype, experts_dtype)
    copied = "a copy on each FFN GPU"
    rows = [
        MemoryLine("outside the share", outside, f"1 - {share:g} of the HBM: activations, the CUDA context"),
        MemoryLine("dense MLP weights", weights.dense_ffn, f"{types.dense}, {copied}", "dense_ffn"),
        MemoryLine(
            "shared expert weights",
            weights.shared_expert,
            f"{types.shared_experts}, {copied}",
            "shared_expert",
        ),
        MemoryLine(
            "routed expert weights",
            weights.routed_expert,
            f"{types.routed_experts}, spread over {gpus} FFN GPUs",
            "routed_expert",
        ),
        MemoryLine(
            "other", KERNELS_BYTES + nccl_bytes(gpus), f"kernels {KERNELS_BYTES / GIB:.1f} GiB, buffers"
        ),
    ]
    needed = sum(row.bytes for row in rows)
    if needed > gpu.hbm_bytes:
        raise ScenarioError(
            f"is too few: {spec.name} needs {(needed - outside) / GB:.1f} GB on each FFN GPU, and "
            f"{(gpu.hbm_bytes - outside) / GB:.1f} GB of a {gpu.name} may be used ({share:g} of "
            f"{gpu.hbm_bytes / GB:.1f} GB); more FFN GPUs hold fewer experts each",
            "afd.ffn_gpus",
            gpus,
        )
    rows.append(MemoryLine("free", gpu.hbm_bytes - needed, "no KV cache here"))
    return tuple(row for row in rows if row.bytes)
