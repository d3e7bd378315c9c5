"""One KV tier below HBM: its size and links, the blocks it holds, and what one replica moves.

Reads and writes have a link each, first come first served, so the end of a transfer is known when it begins.
A written block is held (and counts against the capacity) at once, but can be read only when it is written.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from simserve.core import TierResult
from simserve.units import NS_PER_S

WRITTEN, PROMOTED = "written", "promoted"
"""How a block comes into a tier: from above, or left there on its way up."""
_LONG_AGO = -(1 << 62)
Blocks = dict[int, int]
"""Keys of blocks, the one to be dropped first ahead, and when each can be read where it comes from."""


@dataclass(frozen=True)
class TierSpec:
    """One tier: all figures as seen by one replica."""

    kind: str
    capacity_blocks: int
    block_bytes: int
    """Bytes that move when one block is read or written."""
    read_bytes_per_s: int
    write_bytes_per_s: int
    latency_ns: int
    """From the request for a transfer to its first byte; transfers overlap it."""
    shared_by: str = "replica"
    own_link: bool = True
    """False if all who share the store share its links too (drives), True if each has its own (PCIe, NIC)."""


class Link:
    """One direction of a tier's links."""

    __slots__ = ("bytes_per_s", "free_ns", "moved_bytes")

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self.free_ns = _LONG_AGO
        """When the transfers accepted so far are over."""
        self.moved_bytes = 0

    def time_ns(self, size_bytes: int) -> int:
        """Return how long `size_bytes` occupy the link, rounded up."""
        return -(-size_bytes * NS_PER_S // self.bytes_per_s)

    def end_ns(self, size_bytes: int, now_ns: int) -> int:
        """Return when a transfer that is asked for now would be over."""
        return max(now_ns, self.free_ns) + self.time_ns(size_bytes)

    def move(self, size_bytes: int, now_ns: int) -> int:
        """Accept a transfer; return when it is over."""
        self.free_ns = self.end_ns(size_bytes, now_ns)
        self.moved_bytes += size_bytes
        return self.free_ns


class Store:
    """The blocks of one tier, least recently used first; replicas may share it."""

    def __init__(self, spec: TierSpec) -> None:
        """An empty store; its links are used only by tiers that share them."""
        self.spec = spec
        self.held: OrderedDict[int, int] = OrderedDict()
        """By key: when the block can be read."""
        self.reads = Link(spec.read_bytes_per_s)
        self.writes = Link(spec.write_bytes_per_s)


class Tier:
    """A store as one replica uses it: its links and its counts."""

    def __init__(self, store: Store) -> None:
        """Links of its own, unless the store's are shared."""
        spec = store.spec
        self.store = store
        self.spec = spec
        self.reads = Link(spec.read_bytes_per_s) if spec.own_link else store.reads
        self.writes = Link(spec.write_bytes_per_s) if spec.own_link else store.writes
        self.counts: Counter[str] = Counter()

    def load_end_ns(self, blocks: int, now_ns: int) -> int:
        """Return when `blocks` would be there if they were asked for now."""
        return self.reads.end_ns(blocks * self.spec.block_bytes, now_ns) + self.spec.latency_ns

    def read(self, blocks: int, now_ns: int) -> int:
        """Begin to read `blocks`; return when they are there."""
        self.counts["read"] += blocks
        return self.reads.move(blocks * self.spec.block_bytes, now_ns) + self.spec.latency_ns

    def hold(self, blocks: Blocks, how: str, now_ns: int) -> Blocks:
        """Hold blocks, new ones counted as `how`; return what had to go.

        What is written takes the link's time, and begins when it can be read above.
        """
        held, capacity = self.store.held, self.spec.capacity_blocks
        gone: Blocks = {}
        new = evicted = 0
        for key, since_ns in blocks.items():
            if key in held:
                held.move_to_end(key)
                continue
            held[key] = since_ns if how == PROMOTED else self._written_ns(max(since_ns, now_ns))
            new += 1
            if len(held) > capacity:
                dropped, ready_ns = held.popitem(last=False)
                gone[dropped] = ready_ns
                evicted += 1
        self.counts[how] += new
        self.counts["evicted"] += evicted
        return gone

    def give_up(self, key: int) -> None:
        """Let a block go up."""
        del self.store.held[key]
        self.counts["moved up"] += 1

    def result(self, block_size: int) -> TierResult:
        """Return the totals."""
        counts, size = self.counts, self.spec.block_bytes
        return TierResult(
            kind=self.spec.kind,
            shared_by=self.spec.shared_by,
            capacity_blocks=self.spec.capacity_blocks,
            block_bytes=size,
            used_blocks=len(self.store.held),
            hit_tokens=counts["read"] * block_size,
            refused_tokens=counts["refused"] * block_size,
            read_bytes=counts["read"] * size,
            written_bytes=counts[WRITTEN] * size,
            promoted_blocks=counts[PROMOTED],
            evicted_blocks=counts["evicted"],
            moved_up_blocks=counts["moved up"],
            read_link_ns=self.reads.time_ns(self.reads.moved_bytes),
            write_link_ns=self.writes.time_ns(self.writes.moved_bytes),
        )

    def _written_ns(self, now_ns: int) -> int:
        return self.writes.move(self.spec.block_bytes, now_ns) + self.spec.latency_ns
