"""What a model keeps per token and per sequence: KV cache, latents, and states of constant size.

Layer rules of the domain page, section 2. Every figure is a whole number of bytes, unless an entry stands for
several tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.model.spec import ModelSpec, Parallelism, pipeline_stages


@dataclass(frozen=True)
class KvFootprint:
    """Cache of the layers of one pipeline stage (or of all layers) on one rank."""

    growing_bytes: float
    """Per token, in layers that keep every token."""
    bounded_bytes: float
    """Per token, in layers that keep a window or a chunk; charged only up to their span."""
    bounded_bytes_per_sequence: float
    """Most that those layers keep for one sequence."""
    state_bytes_per_sequence: int
    """Constant states of linear attention."""

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one more token of a short sequence needs: all layers."""
        return self.growing_bytes + self.bounded_bytes

    def mean_bytes_per_token(self, sequence_tokens: int | None) -> float:
        """Return the bytes per token in sequences of that length, bounded layers and states spread over it.

        None takes sequences as no longer than the spans, and leaves states out: an upper bound of the first.
        """
        if sequence_tokens is None:
            return float(self.bytes_per_token)
        bounded = min(self.bounded_bytes * sequence_tokens, self.bounded_bytes_per_sequence)
        return self.growing_bytes + (bounded + self.state_bytes_per_sequence) / sequence_tokens


def kv_bytes_per_token(spec: ModelSpec, kv_dtype: str = "bf16") -> float:
    """Return the bytes of one token in all layers, unsharded. Windows and chunks count as if not yet full."""
    return kv_footprint(spec, Parallelism(), kv_dtype).bytes_per_token


def kv_bytes_per_token_per_rank(spec: ModelSpec, parallelism: Parallelism, kv_dtype: str = "bf16") -> float:
    """Return the bytes of one token on one GPU of the pipeline stage that keeps most.

    Keys and values are split over tp down to whole heads, then replicated; latents are always replicated.
    """
    return kv_footprint(spec, parallelism, kv_dtype).bytes_per_token


def kv_footprint(spec: ModelSpec, parallelism: Parallelism, kv_dtype: str = "bf16") -> KvFootprint:
    """Return the footprint on one GPU of the pipeline stage that keeps most."""
    stages = pipeline_stages(spec, parallelism.pp)
    footprints = (stage_footprint(spec, stage.layers, parallelism.tp, kv_dtype) for stage in stages)
    return max(footprints, key=lambda footprint: (footprint.bytes_per_token, footprint.growing_bytes))


def stage_footprint(spec: ModelSpec, layers: tuple[int, ...], tp: int, kv_dtype: str) -> KvFootprint:
    """Return the footprint of a stage that holds `layers[i]` layers of group i."""
    growing = bounded = bounded_sequence = state = 0
    for count, group in zip(layers, spec.layers, strict=True):
        for attention in group.attentions:
            state += count * attention.sequence_bytes(tp, kv_dtype)
            for cache in attention.caches(tp, kv_dtype):
                token = count * cache.token_bytes
                if cache.span_tokens:
                    bounded += token
                    bounded_sequence += token * cache.span_tokens
                else:
                    growing += token
    return KvFootprint(growing, bounded, bounded_sequence, state)


# KV groups: how vLLM divides the layers of a model with sliding windows, so that all take equal blocks.
#
# Layers of a kind (full, or with a window) are split into groups of one size, the smaller kind's number of
# layers (padded where the larger kind's is not a multiple; the larger number where both are close). A block
# holds `block_size` tokens of one group; groups share one pool. Read in vLLM 0.15.1, 0.19.0 and 0.33.0
# (`_get_kv_cache_groups_uniform_page_size`; in 0.15.1 "close" is below 1.25 times, later below 1.5).


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


def kv_groups(spec: ModelSpec, in_flight_tokens: int, close: float = 1.5) -> KvGroups | None:
    """Return the model's groups, or None if it has one cache for all tokens of all layers.

    Kinds whose numbers of layers differ by less than the factor `close` form one group each.
    None also for what is not modelled: chunked attention (which vLLM keeps whole by default), latent or
    linear attention beside windows, several attentions in a layer, unequal caches, several window sizes.
    """
    layers: dict[int, int] = {}
    sizes: set[int] = set()
    for index in spec.order:
        attentions = spec.layers[index].attentions
        caches = attentions[0].caches(1, "bf16")
        if len(attentions) != 1 or len(caches) != 1 or caches[0].chunked:
            return None
        layers[caches[0].span_tokens] = layers.get(caches[0].span_tokens, 0) + 1
        sizes.add(caches[0].entry_bytes)
    if set(layers) == {0} or len(sizes) > 1 or len(set(layers) - {0}) > 1:
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


# Blocks that caches of unequal kinds share: compressed attention.


@dataclass(frozen=True)
class PackedBlocks:
    """A pool of equal blocks, some for the tokens of a sequence and some for what it keeps however long."""

    block_bytes: int
    block_tokens: int
    sequence_blocks: int
    """Blocks of every running sequence beside those for its tokens."""
    step_blocks: int
    """Further blocks, at most, for the tokens of the steps in flight."""
    fixed_bytes: int
    """What is kept for all sequences together, outside the blocks."""
    words: str

    def bytes_per_token(self, sequence_tokens: int) -> float:
        """Return the bytes per token in sequences of that length."""
        return self.block_bytes * (1 / self.block_tokens + self.sequence_blocks / sequence_tokens)

    def longest(self, kv_bytes: int) -> int:
        """Return the tokens of the longest sequence that a pool of so many bytes holds."""
        return max(0, kv_bytes // self.block_bytes - self.sequence_blocks) * self.block_tokens


# KV that must move when a prompt computed on one replica is answered on another.
#
# Bytes follow from the layer groups, each key, value and latent once (that several ranks keep copies of
# latents
# or of a KV head is the receiver's own matter). Layers with a window or a chunk need only what a next token
# still attends; linear layers move their state. Domain page, section 6.


@dataclass(frozen=True)
class BoundedLayers:
    """Layers that keep only the last tokens of a sequence."""

    bytes_per_token: float
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

    growing_bytes: float
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
        return int(size) + (self.state_bytes if start < end == prompt_tokens else 0)


def kv_transfer_size(spec: ModelSpec, kv_dtype: str = "bf16") -> KvTransferSize:
    """Return what tokens of this model weigh on a link, with a KV cache of that type."""
    growing = state = 0
    bounded: list[BoundedLayers] = []
    for group in spec.layers:
        for attention in group.attentions:
            state += group.count * attention.sequence_bytes(1, kv_dtype)
            for cache in attention.caches(1, kv_dtype):
                size = group.count * cache.token_bytes
                if cache.span_tokens:
                    bounded.append(BoundedLayers(size, cache.span_tokens, cache.chunked))
                else:
                    growing += size
    return KvTransferSize(growing, tuple(bounded), state, spec.num_layers)


def same_split(spec: ModelSpec, tp_from: int, tp_to: int) -> bool:
    """Return True if ranks at both ends hold the same KV heads, so that nothing must be cut or joined."""
    return all(
        min(tp_from, attention.kv_heads) == min(tp_to, attention.kv_heads)
        for group in spec.layers
        for attention in group.attentions
    )
