"""What slots for LoRA adapters take of a GPU in vLLM: 16-bit matrices of the largest rank in every layer.

Each projection holds A [rank, inputs] and B [outputs, rank] for each slot, whether or not an adapter uses
them; tp cuts B where it cuts outputs and A where it cuts inputs. Embedding and head have a pair too. No
recorded start judges this [assumed].
"""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.model.parts import Part, layer_parts
from simserve.model.spec import ModelSpec, MoeFfn
from simserve.model.stages import pipeline_stages

_BYTES = 2


def lora_bytes(spec: ModelSpec, slots: int, rank: int, *, tp: int = 1, pp: int = 1) -> int:
    """Return the bytes of `slots` adapters of `rank` on one GPU of the fullest pipeline stage.

    Raises `ScenarioError` for a model with routed experts: their adapters are not modelled.
    """
    if any(isinstance(ffn, MoeFfn) for group in spec.layers for ffn in group.ffns):
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
