"""Weights on each GPU under tensor, pipeline, data and expert parallelism, and bytes read per step.

vLLM's and SGLang's placement: attention and dense matrices are cut by tp and copied on every dp rank;
routed experts spread over all tp x dp GPUs of a stage, whole (ep) or cut; norms and routers are copied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from simserve.errors import ScenarioError
from simserve.model.dtypes import WeightFormat, WeightsDtype, weight_format
from simserve.model.layers import Ffn, MoeFfn, Part
from simserve.model.layers.base import divisors
from simserve.model.parts import all_parts, first_parts, last_parts, layer_parts
from simserve.model.spec import ModelSpec, Parallelism, Stage, pipeline_stages


@dataclass(frozen=True)
class WeightBytes:
    """Weights of one GPU by kind, in bytes."""

    embedding_and_head: int
    attention: int
    dense_ffn: int
    shared_expert: int
    routed_expert: int
    plain: int
    """Norms, routers, biases: on every GPU."""
    vision: int = 0
    """Image encoder and its projector, on the first stage."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(vars(self).values())


def weight_bytes_per_gpu(
    spec: ModelSpec,
    parallelism: Parallelism,
    weights_dtype: WeightsDtype,
    *,
    redundant_experts: int = 0,
    experts_dtype: str | None = None,
) -> int:
    """Return the weight bytes of the fullest GPU of a replica (that of the heaviest pipeline stage)."""
    stages = weight_bytes_per_stage(
        spec, parallelism, weights_dtype, redundant_experts=redundant_experts, experts_dtype=experts_dtype
    )
    return max(stage.total for stage in stages)


def weight_bytes_per_stage(
    spec: ModelSpec,
    parallelism: Parallelism,
    weights_dtype: WeightsDtype,
    *,
    redundant_experts: int = 0,
    experts_dtype: str | None = None,
    mxfp4: str = "plain",
    marlin_fp8: bool = False,
) -> list[WeightBytes]:
    """Return the weights of one GPU of each pipeline stage, first to last.

    `redundant_experts` are copies per MoE layer beyond the model's own; `experts_dtype` is that of routed
    experts where it differs; `mxfp4` names the kernels as which MXFP4 experts are held (see `mxfp4_bytes`);
    `marlin_fp8`: Marlin's hold those in fp8. Raises `ScenarioError` if the degrees do not divide the model.
    """
    check_parallelism(spec, parallelism, redundant_experts)
    fmt = replace(weight_format(weights_dtype, experts_dtype), marlin_fp8=marlin_fp8)
    spread = _Spread(parallelism, redundant_experts, fmt)
    return [_stage_bytes(spec, stage, spread, mxfp4) for stage in pipeline_stages(spec, parallelism.pp)]


def weight_bytes_total(spec: ModelSpec, weights_dtype: WeightsDtype) -> int:
    """Return the bytes of the whole model, each weight once."""
    return weight_bytes_per_gpu(spec, Parallelism(), weights_dtype)


def weight_bytes_read(spec: ModelSpec, tokens: float, weights_dtype: WeightsDtype) -> float:
    """Return the bytes that a step of `tokens` tokens must read, each weight of the model once.

    Of the routed experts only those that uniform routing touches in expectation; of the embedding only
    the rows looked up.
    """
    fmt = weight_format(weights_dtype)
    total = 0.0
    for count, part in all_parts(spec):
        if part.kind == "routed_expert":
            continue
        share = min(1.0, tokens / spec.vocab_size) if part.kind == "embedding" else 1.0
        total += count * part.params * share * _param_bytes(part, fmt)
    if spec.tie_word_embeddings:  # the head reads the whole embedding
        rest = 1 - min(1.0, tokens / spec.vocab_size)
        total += spec.vocab_size * spec.hidden_size * fmt.of("embedding") * rest
    return total + _expert_bytes_read(spec, tokens, fmt)


def check_parallelism(spec: ModelSpec, parallelism: Parallelism, redundant_experts: int = 0) -> None:
    """Raise `ScenarioError` unless the degrees divide the model's heads, layers and experts."""
    for name in ("tp", "pp", "dp", "ep"):
        if getattr(parallelism, name) < 1:
            raise ScenarioError("", name, getattr(parallelism, name), "a whole number, 1 or more")
    group = parallelism.tp * parallelism.dp
    if group % parallelism.ep:
        raise ScenarioError(
            f"does not divide tp * dp = {group}, the GPUs that experts spread over",
            "ep",
            parallelism.ep,
            divisors(group),
        )
    for layers in spec.layers:
        for attention in layers.attentions:
            attention.check_tp(spec.name, parallelism.tp)
    for moe in spec.moes:
        _check_experts(spec, moe, parallelism, redundant_experts)
    if parallelism.ep > 1 and not spec.moes:
        raise ScenarioError(f"is not possible: {spec.name} has no experts", "ep", parallelism.ep, "1")


def _check_experts(spec: ModelSpec, moe: MoeFfn, parallelism: Parallelism, redundant: int) -> None:
    physical = moe.n_routed_experts + redundant
    if physical % parallelism.ep:
        fits = redundant + -physical % parallelism.ep
        shared = math.gcd(physical, parallelism.tp * parallelism.dp)
        raise ScenarioError(
            f"does not divide the {physical} experts of {spec.name} "
            f"({moe.n_routed_experts} + {redundant} redundant)",
            "ep",
            parallelism.ep,
            f"{divisors(shared)}, or {fits} redundant experts",
        )


@dataclass(frozen=True)
class _Spread:
    parallelism: Parallelism
    redundant_experts: int
    fmt: WeightFormat

    def bytes(self, part: Part) -> float:
        """Bytes of the part on one GPU."""
        one = _param_bytes(part, self.fmt)
        if part.split == "experts":
            spread = (part.copies + self.redundant_experts) / part.copies
            return part.params * one * spread / (self.parallelism.tp * self.parallelism.dp)
        rows, columns = part.local(self.parallelism.tp)
        return rows * columns * one


def _stage_bytes(spec: ModelSpec, stage: Stage, spread: _Spread, mxfp4: str) -> WeightBytes:
    sums = dict.fromkeys(("embedding", "head", *_KINDS), 0.0)
    ends = (first_parts(spec) if stage.first else []) + (last_parts(spec) if stage.last else [])
    if stage.last and not stage.first and spec.tie_word_embeddings:
        ends.append(first_parts(spec)[0])  # a tied head needs its own copy in another stage
    for part in ends:
        sums[part.kind] += spread.bytes(part)
    for group in stage.groups(spec):
        more = _padding(group.ffns, spec.hidden_size, spread, mxfp4)
        for part in layer_parts(group, spec.hidden_size):
            extra = more if part.kind == "routed_expert" else 1.0
            sums[part.kind] += group.count * spread.bytes(part) * extra
    ends_bytes = math.ceil(sums["embedding"] + sums["head"])
    vision = _vision_bytes(spec, spread) if stage.first else 0
    kinds = {kind: math.ceil(sums[kind]) for kind in _KINDS}
    return WeightBytes(ends_bytes, **kinds, vision=vision)


def _vision_bytes(spec: ModelSpec, spread: _Spread) -> int:
    tower = spec.vision
    if tower is None:
        return 0
    params = -(-tower.params // spread.parallelism.tp) + tower.projector_params
    return math.ceil(params * spread.fmt.of("plain"))


def _padding(ffns: tuple[Ffn, ...], hidden: int, spread: _Spread, mxfp4: str) -> float:
    """Return how much larger MXFP4 experts are as the kernels of that name hold them."""
    moes = [ffn for ffn in ffns if isinstance(ffn, MoeFfn)]
    if spread.fmt.types.routed_experts != "mxfp4" or not moes:
        return 1.0
    degrees = spread.parallelism
    cut = degrees.tp * degrees.dp // degrees.ep
    plain = sum(3 * hidden * ffn.moe_intermediate_size / cut for ffn in moes) * spread.fmt.expert_bytes
    widths = [-(-ffn.moe_intermediate_size // cut) for ffn in moes]
    return sum(mxfp4_bytes(hidden, width, mxfp4) for width in widths) / plain


def mxfp4_bytes(hidden: int, width: int, kernels: str) -> float:
    """Return the bytes of one GPU's share of an MXFP4 expert (three matrices, hidden x width).

    vLLM's Marlin rounds hidden up to 256 and the width to 128, TensorRT-LLM's kernels both to 256; those of
    Triton on Hopper round what is summed over to 256, and the other side of its scales
    (`mxfp4_round_up_hidden_size_and_intermediate_size` and `triton_kernels` in the wheel of 0.19.0).
    """
    match kernels:
        case "marlin":
            return 3 * _up(hidden, 256) * _up(width, 128) * (1 / 2 + 1 / 32)
        case "trtllm":
            return 3 * _up(hidden, 256) * _up(width, 256) * (1 / 2 + 1 / 32)
        case "triton":
            width = _up(width, 64)
            values = 2 * width * _up(hidden, 256) + hidden * _up(width, 256)
            scales = _up(2 * width, 256) * hidden + _up(hidden, 256) * width
            return values / 2 + scales / 32
        case _:
            return 3 * hidden * width * (1 / 2 + 1 / 32)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


_KINDS = ("attention", "dense_ffn", "shared_expert", "routed_expert", "plain")


def _param_bytes(part: Part, fmt: WeightFormat) -> float:
    return fmt.of(part.kind if part.quantised or part.kind == "head" else "plain")


def _expert_bytes_read(spec: ModelSpec, tokens: float, fmt: WeightFormat) -> float:
    total = 0.0
    for group in spec.layers:
        for moe in (ffn for ffn in group.ffns if isinstance(ffn, MoeFfn)):
            share = moe.touched_experts(tokens) / moe.n_routed_experts
            routed = moe.routed_parts(spec.hidden_size)
            total += group.count * share * sum(part.params * _param_bytes(part, fmt) for part in routed)
    return total
