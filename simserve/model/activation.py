"""Peak activation memory of one step: what vLLM's profiling run finds, by formula.

Three moments compete: the widest block of a layer at the full token budget, the sampler at the full number
of sequences, and an image encoder at as many images as a step takes. Beside them lie what stays allocated:
buffers of routed experts, encoded images. What a real allocator adds (fragments) is not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.errors import ScenarioError
from simserve.model.layers.base import LargestStep, Part
from simserve.model.memory_rules import MemoryRules
from simserve.model.parts import layer_parts
from simserve.model.spec import ModelSpec, Parallelism, pipeline_stages

# What slots for LoRA adapters take of a GPU in vLLM: 16-bit matrices of the largest rank in every layer.
#
# Each projection holds A [rank, inputs] and B [outputs, rank] for each slot, whether or not an adapter uses
# them; tp cuts B where it cuts outputs and A where it cuts inputs. Embedding and head have a pair too. No
# recorded start judges this [assumed].

_BYTES = 2


def lora_bytes(spec: ModelSpec, slots: int, rank: int, *, tp: int = 1, pp: int = 1) -> int:
    """Return the bytes of `slots` adapters of `rank` on one GPU of the fullest pipeline stage.

    Raises `ScenarioError` for a model with routed experts: their adapters are not modelled.
    """
    if spec.moes:
        raise ScenarioError(f"adapters of {spec.name}: those of routed experts are not modelled")
    ends = spec.hidden_size + -(-spec.vocab_size // tp)
    totals = []
    for stage in pipeline_stages(spec, pp):
        widths = (stage.first + stage.last) * ends
        for group in stage.groups(spec):
            parts = layer_parts(group, spec.hidden_size)
            widths += group.count * sum(_width(part, tp) for part in parts if part.quantised)
        totals.append(widths)
    return _BYTES * slots * rank * max(totals)


def _width(part: Part, tp: int) -> int:
    """Inputs and outputs of a projection on one GPU; keys and values are two."""
    rows, columns = part.local(tp)
    return rows + columns * (2 if part.split == "kv_heads" else 1)


@dataclass(frozen=True)
class ActivationPeak:
    """Peak in bytes, and the moment it belongs to in words."""

    bytes: int
    basis: str


@dataclass(frozen=True)
class FullStep:
    """The largest step of a deployment."""

    parallelism: Parallelism
    tokens: int
    """Most tokens of a step."""
    sequences: int
    """Most sequences of a step."""
    longest: int
    """Tokens of the longest sequence."""
    hidden_size: int
    value_bytes: int
    """Bytes of a hidden value: 2, or 4 in fp32."""
    sm_arch: int
    """Of the GPU."""
    multiprocessors: int
    """Of the GPU."""
    keeps_expert_buffers: bool
    """True if the kernels of routed experts use buffers that stay allocated."""

    @property
    def shape(self) -> LargestStep:
        """What the layers need to know of it."""
        degrees = self.parallelism
        return LargestStep(
            self.tokens,
            self.sequences,
            self.longest,
            self.hidden_size,
            degrees.tp,
            degrees.tp * degrees.dp // degrees.ep,
            self.keeps_expert_buffers,
        )

    @property
    def states(self) -> int:
        """Bytes of the hidden states of all tokens."""
        return self.tokens * self.hidden_size * self.value_bytes


def activation_peak(
    spec: ModelSpec, step: FullStep, rules: MemoryRules, *, first: bool = True, last: bool = True
) -> ActivationPeak:
    """Return the peak of a profiling step on one GPU of a pipeline stage: the `first`, the `last`, or both.

    The last one samples; all but the first keep the hidden states and residuals that they are sent.
    """
    moments = [_layer(spec, step)]
    if last:
        moments.append(_sampler(spec, step, rules))
    if first and spec.vision is not None:
        moments.append(_encoder(spec, step))
    peak = max(moments, key=lambda moment: moment.bytes)
    size, basis = peak.bytes, peak.basis
    if not first:
        size += 2 * step.states
        basis += f"; {step.tokens} tokens received from the stage before"
    elif spec.vision is not None:
        pixels = step.tokens * spec.vision.patches_per_token * spec.vision.pixels
        size += step.states + pixels * step.value_bytes
        basis += f"; images of {step.tokens} tokens, their pixels and encoded"
    return ActivationPeak(size, basis)


def _layer(spec: ModelSpec, step: FullStep) -> ActivationPeak:
    width, block, states = widest_block(spec, step)
    size = states * step.states + step.tokens * step.value_bytes * width
    basis = f"{step.tokens} tokens x {step.value_bytes} B x ({states} x hidden {spec.hidden_size} "
    basis += f"+ {block} {width})"
    return ActivationPeak(size, basis)


def _sampler(spec: ModelSpec, step: FullStep, rules: MemoryRules) -> ActivationPeak:
    """Hidden states of all tokens, those of sampled ones twice, what sampling needs, cuBLAS's workspace."""
    rows = min(step.sequences, step.tokens)
    logit = rules.logit_bytes + step.value_bytes - 2
    size = rows * spec.vocab_size * logit + step.states + _cublas_bytes(step.sm_arch)
    size += 2 * rows * spec.hidden_size * step.value_bytes
    basis = f"sampler: {rows} sequences x {spec.vocab_size} words x {logit} B"
    if rules.filters:
        filtered = min(step.multiprocessors, rows)
        size += filtered * spec.vocab_size * 4
        basis += f" (and {filtered} x 4 B)"
    basis += f", hidden states of {step.tokens} tokens"
    kept = max((ffn.activation_values(step.shape) for ffn in spec.moes), default=0)
    if step.keeps_expert_buffers and kept:
        size += step.tokens * step.value_bytes * kept
        basis += f"; experts keep {step.tokens} tokens x {step.value_bytes} B x {kept}"
    return ActivationPeak(size, basis)


def _cublas_bytes(sm_arch: int) -> int:
    """PyTorch's workspace for cuBLAS: 32 MiB on Hopper and later, 8 MiB (and a bit) before."""
    return (32 << 20) if sm_arch >= 90 else (8 << 20) + (128 << 10)


def _encoder(spec: ModelSpec, step: FullStep) -> ActivationPeak:
    tower = spec.vision
    assert tower is not None
    patches = step.tokens * tower.patches_per_token
    basis = f"image encoder: {patches} patches x {step.value_bytes} B x {tower.patch_values}"
    return ActivationPeak(patches * step.value_bytes * tower.patch_values, basis)


def widest_block(spec: ModelSpec, step: FullStep) -> tuple[int, str, int]:
    """Return the most values per token that any block keeps on one GPU, which it is, and the hidden states.

    Those are the block's input and the residual; of experts also their output and that of shared ones.
    """
    shape = step.shape
    blocks = [
        (attention.activation_values(shape), "attention", 2)
        for group in spec.layers
        for attention in group.attentions
    ]
    blocks += [
        (ffn.activation_values(shape), ffn.name, ffn.hidden_states)
        for group in spec.layers
        for ffn in group.ffns
    ]
    return max(blocks, key=lambda block: block[0] + block[2] * spec.hidden_size)
