"""Decoding sequences and prompt chunks in one call of FlashAttention 2, which splits no context.

Each query head of a decoding sequence is a tile of its own that walks the whole context, among the tiles of
the chunks. The multiprocessors share the work out as it comes, so whole waves no longer count; instead they
end apart, by a share of the longest walk. The kernel starts as many blocks for every sequence as the longest
chunk needs; those without queries end at once, but each costs its start.

The constants were found on an RTX 4090 and judged on an RTX PRO 6000 (`docs/latency.md`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from simserve.latency.costs import Cost
from simserve.latency.grid import EXTRAPOLATED, Float64
from simserve.latency.kernels.attention import DecodeAttention
from simserve.latency.kernels.walk import TileWalk

DECODE_KEYS = 150
"""Keys whose cost equals the start of a decoding sequence's tile."""
UNEVEN_SHARE = 0.43
"""Share of the longest tile's walk by which the call ends later than evenly shared work would."""
EMPTY_BLOCK_US = 0.32
"""Time that a multiprocessor spends on a block without queries."""
GROUP_SPREAD = 1.2
"""How soon query heads of one group stop finding each other's keys in L2: they share while sequences *
group * GROUP_SPREAD stays below the number of multiprocessors."""


class DecodesBeside(NamedTuple):
    """What decoding sequences bring into a call with chunks, at each mean context (float64[n])."""

    work: Cost
    """Their work, evenly shared out."""
    longest_us: Float64
    """Walk of one of their tiles."""
    launch_us: float
    empty_us: float
    """What each block of the longest chunk beyond the first costs in blocks without queries."""


class ChunkBeside(NamedTuple):
    """What one chunk brings into a call with decoding sequences."""

    work_us: float
    """Its work, evenly shared out, and its share of the launch."""
    longest_us: float
    """Walk of its longest tile."""
    blocks: int
    """Blocks of queries."""


NO_CHUNK = ChunkBeside(0.0, 0.0, 1)


def call_time(chunks: Any, work: Any, longest: Any, least: Any, empty: Any) -> Any:
    """Return the time of a whole call, in the unit of its arguments.

    `chunks` is what the chunks take alone, `work` all work evenly shared out, `longest` the longest walk,
    `least` the decoding sequences' walk with the launch, `empty` the time for blocks without queries.
    """
    return max(chunks, work + UNEVEN_SHARE * longest, least) + empty


@dataclass(frozen=True)
class MixedCall:
    """The rule for one layer's attention on one GPU."""

    walk: TileWalk
    decode: DecodeAttention
    key_us: float

    def decodes(self, sequences: int, context: Float64) -> DecodesBeside:
        """Return what `sequences` sequences at each mean context (float64[n]) bring in.

        Heads of a group read the same keys again once they no longer run side by side.
        """
        traits, heads = self.walk.traits, self.decode.heads
        seen = self.decode.attended(context)
        longest_us = self.key_us * (seen + DECODE_KEYS)
        tiles = sequences * heads.q_heads / traits.multiprocessors
        group = heads.q_heads / heads.kv_heads
        apart = min(group, max(1.0, GROUP_SPREAD * group * sequences / traits.multiprocessors))
        head_bytes = sequences * seen * heads.kv_bytes / heads.kv_heads
        reads = np.where(head_bytes > traits.l2_bytes, apart, 1.0)
        read_us = reads * head_bytes * heads.kv_heads / self.decode.bytes_per_us
        tags = np.full(len(seen), max(EXTRAPOLATED, self.walk.grid.trust), np.uint8)
        work = Cost(np.maximum(tiles * longest_us, read_us), tags)
        return DecodesBeside(work, longest_us, self.walk.launch_us(), EMPTY_BLOCK_US * tiles)

    def chunk(self, batch: int, new: int, cached_seen: float, alone_us: float) -> ChunkBeside:
        """Return what one of `batch` equal chunks brings in that takes `alone_us` as their share."""
        traits, heads = self.walk.traits, self.decode.heads
        blocks = ceil(new / traits.tile_rows)
        tiles = batch * heads.q_heads * blocks / traits.multiprocessors
        launch_us = self.walk.launch_us() / batch
        evenly = tiles / self.walk.waves(batch, new)
        own = min(new, heads.window) if heads.window else new
        work_us = launch_us + max(0.0, alone_us - launch_us) * evenly
        return ChunkBeside(work_us, self.key_us * (cached_seen + own), blocks)
