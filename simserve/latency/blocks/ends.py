"""What surrounds the layers: embedding, final norm, output head, sampling.

The head runs once for each sequence that gets a token. vLLM splits the vocabulary over the TP ranks and
gathers the logits.
"""

from __future__ import annotations

from simserve.latency.blocks.plan import Plan, Setting
from simserve.latency.kernels.collective import collective
from simserve.latency.kernels.elementwise import elementwise
from simserve.latency.roofline import BYTES
from simserve.model.parts import head_part
from simserve.model.spec import ModelSpec

SAMPLING_PASSES = 2
"""How often sampling reads or writes the fp32 logits (LLMServingSim's profiles, 2026-08: 0.6-0.8 us per
sequence of 128256 or 151936 logits on RTX PRO 6000, which is two passes)."""
SAMPLING_START_US = 15.0
"""The kernels of a sampling step for one sequence (same source: 12-26 us)."""


def add_embedding(plan: Plan, setting: Setting) -> None:
    """Add the embedding look-up of the first pipeline stage."""
    row_bytes = 2 * setting.hidden * BYTES[setting.activation_dtype]
    plan.per_token.append(elementwise(setting.machine, "embedding", row_bytes))


def add_head(plan: Plan, spec: ModelSpec, setting: Setting) -> None:
    """Add final norm, output head and sampling of the last pipeline stage (the head stays at 16 bit)."""
    machine, tp, width = setting.machine, setting.parallel.tp, BYTES[setting.activation_dtype]
    plan.per_sequence.append(elementwise(machine, "final norm", 2 * setting.hidden * width))
    plan.per_sequence += setting.gemms([head_part(spec)]).values()
    if tp > 1:
        gathered = head_part(spec).local(tp)[0] * tp * width
        plan.per_sequence.append(collective(machine, "logits all-gather", "all_gather", tp, gathered))
    logits_bytes = SAMPLING_PASSES * 4 * spec.vocab_size
    plan.per_sequence.append(elementwise(machine, "sampling", logits_bytes, start_us=SAMPLING_START_US))
