"""The uses of one GPU's memory besides the KV cache, each with its basis."""

from __future__ import annotations

from dataclasses import replace

from simserve.model.activation import FullStep, activation_peak
from simserve.model.memory_rules import (
    CONTEXT_BYTES,
    communicator_bytes,
    graph_bytes,
    nccl_bytes,
    rotary_table_bytes,
)
from simserve.model.memory_settings import MemoryLine, MemorySettings
from simserve.model.parts import LATENT_UP, layer_parts
from simserve.model.spec import ModelSpec
from simserve.model.stages import Stage
from simserve.model.weights import WeightBytes
from simserve.units import GIB

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
