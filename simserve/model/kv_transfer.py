"""KV that must move when a prompt computed on one replica is answered on another.

Bytes follow from the layer groups, each key, value and latent once (that several ranks keep copies of latents
or of a KV head is the receiver's own matter). Layers with a window or a chunk need only what a next token
still attends; linear layers move their state. Domain page, section 6.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.model.kv import token_bytes
from simserve.model.spec import GqaAttention, LinearAttention, ModelSpec


@dataclass(frozen=True)
class BoundedLayers:
    """Layers that keep only the last tokens of a sequence."""

    bytes_per_token: int
    span_tokens: int
    chunked: bool
    """True: the tokens since the last multiple of the span; False: the last `span_tokens`."""

    def first_needed(self, prompt_tokens: int) -> int:
        """Return the first token of a prompt that is still attended after it."""
        if self.chunked:
            return prompt_tokens - prompt_tokens % self.span_tokens
        return max(0, prompt_tokens - self.span_tokens)


@dataclass(frozen=True)
class KvTransferSize:
    """Bytes of a prompt's KV, by kind of layer."""

    growing_bytes: int
    """Per token, in layers that keep every token."""
    bounded: tuple[BoundedLayers, ...]
    state_bytes: int
    """Per sequence: constant states, as they are after the prompt."""
    layers: int

    def of(self, start: int, end: int, prompt_tokens: int) -> int:
        """Return the bytes of the tokens [start, end) of a prompt; states move with its last token."""
        size = self.growing_bytes * max(0, end - start)
        for layers in self.bounded:
            first = max(start, layers.first_needed(prompt_tokens))
            size += layers.bytes_per_token * max(0, end - first)
        return size + (self.state_bytes if start < end == prompt_tokens else 0)


def kv_transfer_size(spec: ModelSpec, kv_dtype: str = "bf16") -> KvTransferSize:
    """Return what tokens of this model weigh on a link, with a KV cache of that type."""
    growing = state = 0
    bounded: list[BoundedLayers] = []
    for group in spec.layers:
        for attention in group.attentions:
            size = group.count * token_bytes(attention, 1, kv_dtype)
            if isinstance(attention, LinearAttention):
                state += group.count * attention.state_bytes
            elif isinstance(attention, GqaAttention) and attention.span != "full":
                bounded.append(BoundedLayers(size, attention.span_tokens, attention.span == "chunked"))
            else:
                growing += size
    return KvTransferSize(growing, tuple(bounded), state, spec.num_layers)


def same_split(spec: ModelSpec, tp_from: int, tp_to: int) -> bool:
    """Return True if ranks at both ends hold the same KV heads, so that nothing must be cut or joined."""
    return all(
        min(tp_from, attention.num_key_value_heads) == min(tp_to, attention.num_key_value_heads)
        for group in spec.layers
        for attention in group.attentions
        if isinstance(attention, GqaAttention)
    )
