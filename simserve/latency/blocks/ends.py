"""What surrounds the layers: embedding, final norm, output head, sampling.

The head runs once for each sequence that gets a token. vLLM splits the vocabulary over the TP ranks and
gathers the logits.
"""

from __future__ import annotations

from simserve.latency.blocks.plan import Plan, Setting
from simserve.latency.kernels.collective import collective
from simserve.latency.kernels.elementwise import elementwise
from simserve.latency.kernels.gemm import gemm
from simserve.latency.roofline import BYTES
from simserve.model.spec import ModelSpec

SAMPLING_PASSES = 3
"""How often sampling reads or writes the fp32 logits (assumption: convert, arg-max or soft-max, gather)."""


def add_embedding(plan: Plan, setting: Setting) -> None:
    """Add the embedding look-up of the first pipeline stage."""
    row_bytes = 2 * setting.hidden * BYTES[setting.activation_dtype]
    plan.per_token.append(elementwise(setting.machine, "embedding", row_bytes))


def add_head(plan: Plan, spec: ModelSpec, setting: Setting) -> None:
    """Add final norm, output head and sampling of the last pipeline stage (the head stays at 16 bit)."""
    machine, tp, width = setting.machine, setting.parallel.tp, BYTES[setting.activation_dtype]
    vocab = -(-spec.vocab_size // tp)
    plan.per_sequence += [
        elementwise(machine, "final norm", 2 * setting.hidden * width),
        gemm(machine, "output head", setting.activation_dtype, vocab, setting.hidden),
    ]
    if tp > 1:
        gathered = vocab * tp * width
        plan.per_sequence.append(collective(machine, "logits all-gather", "all_gather", tp, gathered))
    plan.per_sequence.append(elementwise(machine, "sampling", SAMPLING_PASSES * 4 * spec.vocab_size))
