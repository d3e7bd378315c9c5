"""How far each layer of a grouped-query model looks back: everything, or a sliding window."""

from __future__ import annotations

from typing import Any

from simserve.model.config import Config

FULL: dict[str, Any] = {}


def window(tokens: int) -> dict[str, Any]:
    """Return the settings of an attention bounded to a sliding window."""
    return {"span": "window", "span_tokens": tokens}


def chunked(tokens: int) -> dict[str, Any]:
    """Return the settings of an attention bounded to the chunk that the token lies in."""
    return {"span": "chunked", "span_tokens": tokens}


def spans(config: Config) -> list[dict[str, Any]]:
    """Return the span settings of each layer.

    A `layer_types` list decides where there is one. Without it `sliding_window` holds for all layers,
    unless `use_sliding_window` is false (Qwen writes a window that it does not use).
    """
    layers = config.size("num_hidden_layers")
    used = config.flag("use_sliding_window", True)
    tokens = config.count("sliding_window", 0)
    if config.has("layer_types"):
        kinds = config.words("layer_types", ["full_attention", "sliding_attention"], layers)
        if "sliding_attention" in kinds and not tokens:
            raise config.error("sliding_window", None, "a whole number: 'layer_types' has sliding layers")
        return [window(tokens) if kind == "sliding_attention" else FULL for kind in kinds]
    if tokens and used and config.has("use_sliding_window"):
        return _qwen2_spans(config, layers, tokens)
    return [window(tokens) if tokens and used else FULL] * layers


def _qwen2_spans(config: Config, layers: int, tokens: int) -> list[dict[str, Any]]:
    """Qwen 2: the first `max_window_layers` layers are full, the rest slide."""
    full = min(config.count("max_window_layers", layers), layers)
    return [FULL] * full + [window(tokens)] * (layers - full)
