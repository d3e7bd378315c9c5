"""The registry of readers, and what most architectures have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simserve.errors import ScenarioError, nearest
from simserve.model.layers import Attention, DenseFfn, Ffn, GqaAttention, HyperConnections, MlaAttention
from simserve.model.quantization import checkpoint_of, module_names
from simserve.model.spec import LayerGroup, ModelSpec
from simserve.model.vision import vision_tower
from simserve.registry import Registry

# A Hugging Face `config.json` that notices which of its fields were read.
#
# A field that nobody read and that is not known to leave the shapes alone is refused by name: a model
# with an attention of a new kind must not pass for an ordinary one.

# fmt: off
_HARMLESS = frozenset((
    "activation_function", "architectures", "attn_implementation", "attn_pdrop", "attn_scale",
    "attn_temperature_tuning", "auto_map", "aux_loss_alpha", "chat_template", "dtype", "embd_pdrop",
    "ep_size", "floor_scale", "hidden_act", "hidden_activation", "id2label", "ignore_index",
    "initial_context_length", "initializer_range", "label2id", "layer_norm_eps", "layer_norm_epsilon",
    "layernorm_epsilon", "length_penalty", "max_length", "max_window_layers", "model_type", "n_ctx",
    "name_or_path", "norm_eps", "norm_topk_prob", "num_beam_groups", "num_beams",
    "num_return_sequences", "original_max_position_embeddings", "output_attentions",
    "output_hidden_states", "output_router_logits", "partial_rotary_factor", "pretraining_tp",
    "quantization", "quantization_config", "repetition_penalty", "resid_pdrop", "return_dict",
    "return_dict_in_generate", "rms_norm_eps", "rope_interleave", "rope_parameters", "rope_scaling",
    "rope_theta", "rotary_dim", "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise",
    "scale_attn_weights", "scoring_func", "seq_aux", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "swiglu_limit",
    "task_specific_params", "temperature", "text_config", "top_k", "top_p", "topk_method",
    "torch_dtype", "transformers_version", "typical_p", "unsloth_fixed", "use_cache",
    "use_unified_vision_chunk", "vision_config",
))
# fmt: on
"""Fields of `config.json` that leave every shape as it is."""
_HARMLESS_PATTERN = re.compile(r"^_|_token_(id|index)s?$|dropout|_loss_|^image_|^video_|^vision_|^audio_")


class Config:
    """The fields of one model configuration, with a note of those that were read."""

    def __init__(self, fields: Mapping[str, Any], place: str) -> None:
        """`place` names the file (or preset) in messages."""
        self._fields = fields
        self._read: set[str] = set()
        self.place = place

    def has(self, name: str) -> bool:
        """Tell whether the field is there and not null."""
        return self._fields.get(name) is not None

    def count(self, name: str, default: int | None = None) -> int:
        """Return a field that must be a whole number >= 0; `default` stands in for an absent or null one."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.error(name, value, "a whole number, 0 or more")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """Return a field that must be a whole number >= 1."""
        value = self.count(name, default)
        if value == 0:
            raise self.error(name, value, "a whole number, 1 or more")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a field that must be true or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def optional(self, name: str) -> object:
        """Return a field as it is, None if it is absent."""
        self._read.add(name)
        return self._fields.get(name)

    def text(self, name: str) -> str:
        """Return a field that is text, empty if it is absent or null."""
        self._read.add(name)
        value = self._fields.get(name)
        return value if isinstance(value, str) else ""

    def word(self, name: str, allowed: Iterable[str], default: str) -> str:
        """Return a field that must be one of the `allowed` words."""
        value = self._value(name, default)
        words = sorted(allowed)
        if value not in words:
            raise self.error(name, value, "one of " + ", ".join(words) + nearest(str(value), words))
        return value

    def words(self, name: str, allowed: Iterable[str], length: int) -> list[str]:
        """Return a list of `length` words, each of them among `allowed`."""
        value = self._list(name, length)
        words = sorted(allowed)
        for item in value:
            if item not in words:
                raise self.error(name, item, "one of " + ", ".join(words) + nearest(str(item), words))
        return value

    def counts(self, name: str, length: int | None = None) -> list[int]:
        """Return a list of whole numbers >= 0, of `length` if given; an absent one is empty.

        Text like "4,5,6" (Step-3) is taken as a list.
        """
        if length is None and not self.has(name):
            self._read.add(name)
            return []
        text = self._fields.get(name)
        if isinstance(text, str) and re.fullmatch(r"[\d, ]+", text):
            self._read.add(name)
            return [int(item) for item in text.split(",") if item.strip()]
        value = self._list(name, length)
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in value):
            raise self.error(name, value, "a list of whole numbers, 0 or more")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a field that must be a mapping."""
        value = self._value(name, None)
        if not isinstance(value, dict):
            raise self.error(name, value, "a mapping")
        return value

    def require(self, name: str, allowed: object, why: str) -> None:
        """Refuse the field unless it is absent, null or `allowed`; `why` says what is not modelled."""
        self._read.add(name)
        value = self._fields.get(name)
        if value is not None and value != allowed:
            raise self.error(name, value, f"{allowed!r}: {why}")

    def ignore(self, *names: str) -> None:
        """Note that these fields do not change the shapes of this architecture."""
        self._read.update(names)

    def finish(self) -> None:
        """Refuse fields that nobody read and that may change the maths."""
        for name, value in self._fields.items():
            known = name in self._read or name in _HARMLESS or _HARMLESS_PATTERN.search(name)
            if known or value in (None, False, 0, "", [], {}):
                continue
            raise ScenarioError(
                f"{self.place}: field {name!r} = {_short(value)} is not understood by the reader of this "
                f"architecture{nearest(name, self._read)}; it may change what the model computes, so it is "
                "not ignored. Remove it from the file if it does not"
            )

    def error(self, name: str, value: object, allowed: str) -> ScenarioError:
        """Return the error for a wrong value."""
        return ScenarioError(f"{self.place}: {name} = {_short(value)}, allowed: {allowed}")

    def _value(self, name: str, default: object) -> Any:
        self._read.add(name)
        value = self._fields.get(name)
        if value is not None:
            return value
        if default is None:
            raise ScenarioError(f"{self.place}: field {name!r} is missing{nearest(name, self._fields)}")
        return default

    def _list(self, name: str, length: int | None) -> list[Any]:
        value = self._value(name, None)
        if not isinstance(value, list) or (length is not None and len(value) != length):
            raise self.error(name, value, f"a list of {length} items" if length else "a list")
        return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# How far each layer of a grouped-query model looks back: everything, or a sliding window.

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


Reader = Callable[[Config, str], ModelSpec]
"""Takes the configuration and the model's name; everything that matters must be read or refused."""

READERS: Registry[Reader] = Registry("model architecture", "simserve.model.readers")

Layer = tuple[tuple[Attention, ...], tuple[Ffn, ...]]
"""One layer: its attentions and its feed-forward blocks."""


def read_config(fields: Mapping[str, Any], name: str, place: str) -> ModelSpec:
    """Return the spec of the model whose configuration is `fields`.

    Raises `ScenarioError` for an architecture without a reader and for fields that would be ignored.
    """
    reader = READERS.get(_architecture(fields, place))
    inner = fields.get("text_config")
    all_fields = {**fields, **inner} if isinstance(inner, Mapping) else fields
    config = Config(all_fields, place)
    spec = reader(config, name)
    config.finish()
    types = checkpoint_of(all_fields.get("quantization_config"), module_names(spec), place)
    types = types.with_fixed(spec.checkpoint)
    named = fields.get("architectures") or [""]
    vision = vision_tower(fields, spec.hidden_size)
    return replace(spec, checkpoint=types, vision=vision, architecture=str(named[0]))


def _architecture(fields: Mapping[str, Any], place: str) -> str:
    names = [fields.get("model_type"), *(fields.get("architectures") or [])]
    named = [name for name in names if isinstance(name, str)]
    known = READERS.names()
    for name in named:
        if name in known:
            return name
    if not named:
        raise ScenarioError(f"{place}: neither 'model_type' nor 'architectures' says what the model is")
    raise ScenarioError(
        f"{place}: architecture {' / '.join(named)} is not supported{nearest(named[0], known)}",
        allowed=", ".join(name for name in known if name.islower()),
    )


def gqa(config: Config, **settings: Any) -> GqaAttention:
    """Return the grouped-query attention that the usual fields describe, with `settings` on top."""
    heads = config.size("num_attention_heads")
    head_dim = config.size("head_dim", config.size("hidden_size") // heads)
    return GqaAttention(heads, config.size("num_key_value_heads", heads), head_dim, **settings)


def mla(config: Config, **settings: Any) -> MlaAttention:
    """Return the multi-head latent attention that the usual fields describe."""
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim")  # all heads share the one latent
    return MlaAttention(
        num_attention_heads=config.size("num_attention_heads"),
        q_lora_rank=config.count("q_lora_rank", 0),
        kv_lora_rank=config.size("kv_lora_rank"),
        qk_nope_head_dim=config.size("qk_nope_head_dim"),
        qk_rope_head_dim=config.size("qk_rope_head_dim"),
        v_head_dim=config.size("v_head_dim"),
        **settings,
    )


def dense(config: Config, **settings: Any) -> DenseFfn:
    """Return the gated MLP of `intermediate_size`."""
    return DenseFfn(config.size("intermediate_size"), **settings)


def decoder(
    config: Config,
    name: str,
    layers: Sequence[Layer],
    *,
    length: str = "max_position_embeddings",
    tied: bool = False,
    residual: HyperConnections | None = None,
    **settings: Any,
) -> ModelSpec:
    """Return the spec of a decoder with these layers, first to last; equal layers share a group.

    `length` names the field of its longest context; `tied` holds where `tie_word_embeddings` is absent.
    """
    kinds: dict[Layer, int] = {}
    order = tuple(kinds.setdefault(layer, len(kinds)) for layer in layers)
    groups = tuple(LayerGroup(order.count(index), *layer, residual) for layer, index in kinds.items())
    return ModelSpec(
        name=name,
        hidden_size=config.size("hidden_size"),
        vocab_size=config.size("vocab_size"),
        max_position_embeddings=config.size(length),
        layers=groups,
        tie_word_embeddings=config.flag("tie_word_embeddings", tied),
        source=config.place,
        num_nextn_predict_layers=config.count("num_nextn_predict_layers", 0),
        layer_order=() if order == tuple(sorted(order)) else order,
        **settings,
    )
