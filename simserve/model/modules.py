"""What checkpoints call the matrices of a model's layers, so that their lists of modules can be read.

Families name the same matrix differently; every name that one of them uses is given for it.
"""

from __future__ import annotations

from simserve.model.spec import Attention, Ffn, GqaAttention, MlaAttention, ModelSpec, MoeFfn

Module = tuple[str, ...]
"""One matrix, under each of its names."""
Names = dict[str, list[list[Module]]]
"""By part of the weights: for each layer that has the part, its matrices."""

_GATED = ("gate_proj", "up_proj", "down_proj")
_EXPERT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""Mixtral's names for an expert's matrices."""
_FUSED = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"}
_ROOTS = ("model.layers.{}.", "language_model.model.layers.{}.", "model.language_model.layers.{}.")


def module_names(spec: ModelSpec) -> Names:
    """Return the matrices of every layer, by part; the head is left out."""
    names: Names = {}
    for index, group in enumerate(spec.order):
        for attention in spec.layers[group].attentions:
            names.setdefault("attention", []).append(_under(index, _attention(attention)))
        for ffn in spec.layers[group].ffns:
            for part, modules in _ffn(ffn).items():
                names.setdefault(part, []).append(_under(index, modules))
    return names


def _under(layer: int, modules: list[Module]) -> list[Module]:
    roots = [root.format(layer) for root in _ROOTS]
    return [tuple(root + name for root in roots for name in module) for module in modules]


def _attention(attention: Attention) -> list[Module]:
    match attention:
        case GqaAttention():
            names = ["q_proj", "k_proj", "v_proj", "o_proj"]
        case MlaAttention():
            query = ["q_a_proj", "q_b_proj"] if attention.q_lora_rank else ["q_proj"]
            names = [*query, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
        case _:
            return [(f"linear_attn.{name}",) for name in ("in_proj_qkvz", "out_proj")]
    return [(f"self_attn.{name}",) for name in names]


def _ffn(ffn: Ffn) -> dict[str, list[Module]]:
    if not isinstance(ffn, MoeFfn):
        return {"dense": [(f"mlp.{name}", f"feed_forward.{name}") for name in _GATED]}
    parts = {"routed_experts": [_expert(name) for name in _GATED]}
    if ffn.shared_intermediate_size:
        places = ("mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert")
        parts["shared_experts"] = [tuple(f"{place}.{name}" for place in places) for name in _GATED]
    return parts


def _expert(name: str) -> Module:
    places = ("mlp.experts", "feed_forward.experts", "block_sparse_moe.experts")
    one = [f"{place}.0.{name}" for place in places[:2]] + [f"{places[2]}.0.{_EXPERT[name]}"]
    return (*one, *(f"{place}.{_FUSED[name]}" for place in places))
