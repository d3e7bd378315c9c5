"""Image encoders beside language models: what a `vision_config` says of their size.

SigLIP, CLIP, Pixtral, MoonViT, and those of Qwen VL and Llama 4. Norms, biases and class tokens are left out
(a thousandth). vLLM cuts an encoder over tp and keeps the projector whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.model.spec import VisionTower

Fields = Mapping[str, Any]

_GATED = ("pixtral", "qwen2_5_vl", "qwen2_5_vl_vision")
"""Encoders whose MLPs have three matrices; all others have two."""
_POSITIONED = ("siglip_vision_model", "clip_vision_model", "llama4_vision_model")
"""Encoders with a learned vector for each patch of their image."""
_PATCHES_PER_TOKEN = 4
"""Neighbouring patches that become one token unless a configuration says otherwise: 2 x 2."""
_LLAMA4_WIDTH = 4096
"""Width between the pixel shuffle of Llama 4 and its projector."""


def vision_tower(fields: Fields, hidden: int) -> VisionTower | None:
    """Return the encoder in front of a language model `hidden` wide; None if there is none, or no sizes."""
    inner = fields.get("vision_config")
    if not isinstance(inner, Mapping):
        return None
    width = _first(inner, "embed_dim", "vt_hidden_size", "hidden_size")
    layers = _first(inner, "depth", "vt_num_hidden_layers", "num_hidden_layers")
    mlp = _first(inner, "vt_intermediate_size", "intermediate_size")
    mlp = mlp or width * _first(inner, "mlp_ratio")
    if not (width and layers and mlp):
        return None
    kind = str(inner.get("model_type", ""))
    matrices = 3 if kind in _GATED else 2
    patch = _first(inner, "patch_size") or 14
    side = _first(inner, "image_size") // patch
    pixels = 3 * patch**2 * max(1, _first(inner, "temporal_patch_size"))
    params = layers * (4 * width**2 + matrices * width * mlp) + pixels * width
    if kind in _POSITIONED:
        params += side**2 * width
    merged = _merged(fields, inner, side)
    return VisionTower(
        params,
        _projector(fields, width, hidden, merged),
        patch_values=2 * width + max(3 * width, matrices * mlp),
        patches_per_token=merged,
        pixels=pixels,
    )


def _first(fields: Fields, *names: str) -> int:
    """Return the first of these fields that is a number, 0 if none is."""
    found = (fields.get(name) for name in names)
    return next((int(value) for value in found if isinstance(value, int | float)), 0)


def _merged(fields: Fields, inner: Fields, side: int) -> int:
    """Return how many patches become one token."""
    match fields.get("model_type"):
        case "gemma3":
            return max(1, side**2 // (_first(fields, "mm_tokens_per_image") or 256))
        case "llava" | "llava_next":
            return 1
        case _:
            merge = _first(fields, "spatial_merge_size") or _first(inner, "spatial_merge_size")
            return merge**2 or _PATCHES_PER_TOKEN


def _projector(fields: Fields, width: int, hidden: int, merged: int) -> int:
    """Return the parameters of the projector."""
    match fields.get("model_type"):
        case "gemma3":
            return width * hidden
        case "llava" | "llava_next":
            taken = fields.get("vision_feature_layer")
            return width * (len(taken) if isinstance(taken, list) else 1) * hidden + hidden**2
        case "mistral3":
            return merged * width**2 + width * hidden + hidden**2
        case "llama4":
            return width * merged * _LLAMA4_WIDTH + _LLAMA4_WIDTH**2 + _LLAMA4_WIDTH * hidden
        case _:
            return (merged * width) ** 2 + merged * width * hidden
