"""What drafts tokens for a model: its own prediction layer, an EAGLE head, a smaller model, or look-ups.

Multi-token prediction (DeepSeek-V3) and EAGLE (Li, 2024) add one layer behind the model: the last hidden
state and the embedding of the next token pass a projection to the layer's width, and the model's own
embedding and head are used. A draft model is whole. N-grams are looked up in the prompt and need neither
weights nor cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simserve.errors import ScenarioError
from simserve.model.dtypes import WeightsDtype, weight_types
from simserve.model.kv import kv_bytes_per_token_per_rank
from simserve.model.spec import ModelSpec, Parallelism
from simserve.model.weights import weight_bytes_per_stage

DraftMethod = Literal["mtp", "eagle", "draft_model", "ngram"]
_EAGLE3_WORDS = 32_000
"""Vocabulary of the published heads for Llama 3 and Qwen 3 (`draft_vocab_size`)."""
_PROJECTION_BYTES = 2
"""The projection stays at 16 bit, as heads do."""


@dataclass(frozen=True)
class Drafter:
    """A model that drafts."""

    method: DraftMethod
    spec: ModelSpec
    """Its layers, with the embedding and head that it uses."""
    projected: int
    """Vectors of the model's width that a projection in front of it takes in; 0: there is none."""

    @property
    def owns_ends(self) -> bool:
        """True if embedding and head are its own, and not those of the model that it drafts for."""
        return self.method == "draft_model"

    @property
    def words(self) -> str:
        """What it is, in words."""
        if self.owns_ends:
            return self.spec.name
        return f"one layer like the last, a projection of {self.projected} vectors, the model's own head"


@dataclass(frozen=True)
class DraftMemory:
    """What a draft takes of each GPU."""

    weight_bytes: int
    kv_bytes_per_token: float
    words: str


def drafter_of(model: ModelSpec, method: DraftMethod, small: ModelSpec | None = None) -> Drafter | None:
    """Return what drafts for `model`; None if nothing runs on the GPU (n-grams).

    `small` is the draft model of method draft_model. Raises `ScenarioError` for what the model does not have.
    """
    if model.has_compressed:
        raise ScenarioError(
            f"speculation = {method} is not allowed: how compressed attention ({model.name}) verifies drafts "
            "is not modelled"
        )
    if method == "ngram":
        return None
    if method == "draft_model":
        if small is None:
            raise ScenarioError("method draft_model needs a `model`")
        if small.vocab_size != model.vocab_size:
            raise ScenarioError(
                f"{small.name} cannot draft for {model.name}: vocabulary of {small.vocab_size:,}, not "
                f"{model.vocab_size:,}"
            )
        return Drafter(method, small, 0)
    if method == "mtp" and not model.num_nextn_predict_layers:
        raise ScenarioError(
            f"method mtp: {model.name} ships no prediction layer (num_nextn_predict_layers = 0); "
            "allowed for it: eagle, draft_model, ngram"
        )
    return Drafter(method, draft_layer(model), 2)


def draft_layer(model: ModelSpec) -> ModelSpec:
    """Return one more layer like the last as a model of its own, with embedding and head."""
    last = replace(model.layers[model.order[-1]], count=1)
    return replace(model, name=f"{model.name} draft", layers=(last,), layer_order=(), vision=None)


def eagle3_memory(
    model: ModelSpec, parallel: Parallelism, weights_dtype: WeightsDtype, kv_dtype: str
) -> DraftMemory:
    """Return the bytes that an EAGLE-3 head (Li, 2025) takes of each GPU.

    One dense layer whose attention reads the embedding beside the hidden state, a projection of three hidden
    states, and a head of its own for `_EAGLE3_WORDS` words; it is in 16 bit. Raises `ScenarioError` for a
    model whose last layer has experts: how wide the dense layer of its head is, is not known.
    """
    layer = draft_layer(model)
    (group,) = layer.layers
    if layer.moes:
        raise ScenarioError(
            f"EAGLE-3 for {model.name}: its head has a dense layer of a width that is not known"
        )
    (weights,) = weight_bytes_per_stage(layer, parallel, weight_types(weights_dtype).activation)
    reads = sum(
        part.local(parallel.tp)[0]
        for attention in group.attentions
        for part in attention.parts(model.hidden_size)
        if part.product == "qkv"
    )
    hidden = model.hidden_size
    more = reads * hidden + 3 * hidden**2 + _ceil(_EAGLE3_WORDS, parallel.tp) * hidden
    return DraftMemory(
        weights.total - weights.embedding_and_head + _PROJECTION_BYTES * more,
        kv_bytes_per_token_per_rank(layer, parallel, kv_dtype),
        f"EAGLE-3: one layer like the last, a head of {_EAGLE3_WORDS:,} words [assumption]",
    )


def _ceil(value: int, parts: int) -> int:
    return -(-value // parts)


def draft_memory(
    drafter: Drafter,
    parallel: Parallelism,
    *,
    weights_dtype: WeightsDtype,
    kv_dtype: str,
    experts_dtype: str | None,
    redundant_experts: int = 0,
) -> DraftMemory:
    """Return the bytes that a draft takes of each GPU."""
    (weights,) = weight_bytes_per_stage(
        drafter.spec,
        parallel,
        weights_dtype,
        redundant_experts=redundant_experts if not drafter.owns_ends else 0,
        experts_dtype=experts_dtype,
    )
    shared = 0 if drafter.owns_ends else weights.embedding_and_head
    projection = drafter.projected * drafter.spec.hidden_size**2 * _PROJECTION_BYTES
    return DraftMemory(
        weights.total - shared + projection,
        kv_bytes_per_token_per_rank(drafter.spec, parallel, kv_dtype),
        drafter.words,
    )
