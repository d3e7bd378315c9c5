"""KV groups: how vLLM divides the layers of a model with sliding windows, so that all take equal blocks.

Layers of a kind (full, or with a window) are split into groups of one size, the smaller kind's number of
layers (padded where the larger kind's is not a multiple; the larger number where both are close). A block
holds `block_size` tokens of one group; groups share one pool. Read in vLLM 0.15.1, 0.19.0 and 0.33.0
(`_get_kv_cache_groups_uniform_page_size`; in 0.15.1 "close" is below 1.25 times, later below 1.5).
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.model.spec import GqaAttention, ModelSpec

CLOSE = 1.5
"""Kinds whose numbers of layers differ by less than this factor form one group each."""
CLOSE_BEFORE_19 = 1.25


@dataclass(frozen=True)
class KvGroups:
    """Groups of equally many layers, in the order of their kinds' first layers."""

    windows: tuple[int, ...]
    """By group: the tokens that a token sees, itself included; 0: all."""
    layers: int
    """Layers of a group, padding included."""
    padding: int
    """Layers that exist only to make groups equal."""
    in_flight_tokens: int
    """Tokens that may be scheduled beyond what is settled: what a window group holds besides its window."""

    @property
    def words(self) -> str:
        """The groups, in words."""
        full = self.windows.count(0)
        kinds = [f"{full} of full attention"] if full else []
        if full < len(self.windows):
            kinds.append(f"{len(self.windows) - full} of a window of {max(self.windows)} tokens")
        padded = f", {self.padding} of them padding" if self.padding else ""
        total = len(self.windows) * self.layers
        return f"{' and '.join(kinds)}, {self.layers} layers each ({total} in all{padded})"

    def window_blocks(self, block_size: int, longest: int) -> int:
        """Return the most blocks that one sequence of up to `longest` tokens holds in a window group."""
        tokens = min(max(self.windows) - 1 + self.in_flight_tokens, longest)
        return -(-tokens // block_size) + 1  # a window need not begin with a block

    def sequence_blocks(self, tokens: int, block_size: int) -> int:
        """Return the most blocks that a sequence of `tokens` tokens holds at any time, in all groups."""
        whole = -(-tokens // block_size)
        in_window = min(whole, self.window_blocks(block_size, tokens))
        full = self.windows.count(0)
        return full * whole + (len(self.windows) - full) * in_window

    def longest(self, blocks: int, block_size: int, at_most: int) -> int:
        """Return the longest sequence, up to `at_most` tokens, that a pool of `blocks` blocks holds."""
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequence_blocks(middle, block_size) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def kv_groups(spec: ModelSpec, in_flight_tokens: int, close: float = CLOSE) -> KvGroups | None:
    """Return the model's groups, or None if it has one cache for all tokens of all layers.

    None also for what is not modelled: chunked attention (which vLLM keeps whole by default), latent or
    linear attention beside windows, several attentions in a layer, unequal caches, several window sizes.
    """
    layers: dict[int, int] = {}
    shapes: set[tuple[int, int]] = set()
    for index in spec.order:
        attentions = spec.layers[index].attentions
        attention = attentions[0]
        if len(attentions) != 1 or not isinstance(attention, GqaAttention) or attention.span == "chunked":
            return None
        layers[attention.span_tokens] = layers.get(attention.span_tokens, 0) + 1
        shapes.add((attention.num_key_value_heads, attention.head_dim))
    if set(layers) == {0} or len(shapes) > 1 or len(set(layers) - {0}) > 1:
        return None
    fewest, most = min(layers.values()), max(layers.values())
    size = most if most < close * fewest else fewest
    groups = {window: -(-count // size) for window, count in layers.items()}
    return KvGroups(
        windows=tuple(window for window, count in groups.items() for _ in range(count)),
        layers=size,
        padding=sum(groups.values()) * size - sum(layers.values()),
        in_flight_tokens=in_flight_tokens,
    )
