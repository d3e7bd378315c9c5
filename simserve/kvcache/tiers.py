"""KV tiers below HBM: host memory, SSD, a remote store. Which blocks they hold, and what a load costs.

Blocks are named by content key, as in `PrefixCache`. Each tier is an LRU list; what one drops goes to the
next. HBM never waits for a write (blocks on their way down are taken to be staged), but a block is found
below only once it is written. In outline as vLLM's offloading connector, LMCache and SGLang's HiCache, in
detail as none of them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simserve.core import TierResult
from simserve.units import NS_PER_S

# One KV tier below HBM: its size and links, the blocks it holds, and what one replica moves.
#
# Reads and writes have a link each, first come first served, so the end of a transfer is known when it
# begins.
# A written block is held (and counts against the capacity) at once, but can be read only when it is written.

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


RecomputeNs = Callable[[int, int], int]
"""(tokens, cached tokens before them) -> ns of computing them as a prompt."""
_NEVER = 1 << 62


class Plan(NamedTuple):
    """What the tiers hold of a prompt beyond HBM, and how much of it is worth loading."""

    keys: Sequence[int]
    """Blocks found, one after the other."""
    places: Sequence[int]
    """Tier of each."""
    blocks: int
    """How many of them to load; 0: computing them again is faster."""


class TierCache:
    """The tiers of one replica, fastest first."""

    def __init__(
        self,
        stores: Sequence[Store],
        *,
        block_size: int,
        recompute_ns: RecomputeNs,
        write_through: bool = False,
        inclusive: bool = True,
        min_hit_tokens: int = 0,
    ) -> None:
        """`stores` may be shared with other replicas.

        Written back: HBM gives a block to the first tier when it drops it. Written through: when the block
        becomes full. Inclusive: a loaded block stays where it was, and the tiers above get a copy; else it
        moves.
        """
        self._tiers = [Tier(store) for store in stores if store.spec.capacity_blocks]
        self._block_size = block_size
        self._recompute_ns = recompute_ns
        self._through = write_through
        self._inclusive = inclusive
        self._min_hit_tokens = min_hit_tokens
        self.drops_are_written = not write_through
        """True if it matters when HBM drops a block: its write begins then."""
        self._now_ns = 0
        self._filled: dict[int, None] = {}
        """Blocks that become full in the step in progress, to be written when it is over."""

    @property
    def empty(self) -> bool:
        """True if no tier has room for a block: the same as no tiers."""
        return not self._tiers

    def results(self) -> tuple[TierResult, ...]:
        """Return the totals of each tier."""
        return tuple(tier.result(self._block_size) for tier in self._tiers)

    # -- what HBM tells ----------------------------------------------------------------------------------

    def at(self, now_ns: int) -> None:
        """A step is over, and what follows happens now: begin to write the blocks that it filled."""
        self._now_ns = now_ns
        if self._filled:
            filled, self._filled = self._filled, {}
            self._hold(0, dict.fromkeys(filled, now_ns))

    def dropped(self, keys: Sequence[int]) -> None:
        """HBM no longer holds these blocks, the last dropped last."""
        if self._through:
            return
        if self._inclusive or all(tier.store.held.keys().isdisjoint(keys) for tier in self._tiers[1:]):
            self._hold(0, dict.fromkeys(keys, self._now_ns))
            return
        for key in keys:
            self._give_up(key, self._tiers[1:])
            self._hold(0, {key: self._now_ns})

    def filled(self, keys: Sequence[int]) -> None:
        """These blocks become full in HBM in the step in progress."""
        if self._through:
            self._filled.update(dict.fromkeys(reversed(keys)))

    def used(self, keys: Sequence[int]) -> None:
        """An admitted request hit these blocks in HBM: their copies here are as good as used."""
        if self._through:
            self._touch(keys)

    def tokens_by_kind(self, keys: Sequence[int], now_ns: int) -> dict[str, int]:
        """Return the tokens of these blocks that could be loaded now, up to the first that is nowhere."""
        levels = Counter(self._find(keys, now_ns))
        tokens: Counter[str] = Counter()
        for level, blocks in levels.items():
            tokens[self._tiers[level].store.spec.kind] += blocks * self._block_size
        return dict(tokens)

    # -- loads -------------------------------------------------------------------------------------------

    def plan(self, keys: Sequence[int], known: int, hits: int, now_ns: int) -> Plan:
        """Return what to load for a request with `known` tokens whose first `hits` blocks are in HBM.

        `keys` are its blocks after these. Loads as much as saves most time: prompt time saved, less the load
        with all that its links have accepted before. Changes nothing.
        """
        places = self._find(keys, now_ns)
        size = self._block_size
        if not places or len(places) * size < self._min_hit_tokens:
            return Plan(keys[: len(places)], places, 0)
        whole_ns = self._recompute_ns(known - hits * size, hits * size)
        best_ns, best = 0, 0
        for blocks in _cuts(places):
            loaded = (hits + blocks) * size
            saved_ns = whole_ns - self._recompute_ns(known - loaded, loaded)
            gain_ns = saved_ns - (self._load_end_ns(places[:blocks], now_ns) - now_ns)
            if gain_ns > best_ns:
                best_ns, best = gain_ns, blocks
        return Plan(keys[: len(places)], places, best)

    def load(self, plan: Plan, now_ns: int) -> int:
        """Begin to load the plan's blocks; return when they are in HBM."""
        keys, places = plan.keys[: plan.blocks], plan.places[: plan.blocks]
        end_ns = max(self._tiers[level].read(blocks, now_ns) for level, blocks in Counter(places).items())
        if self._inclusive:
            self._touch(keys)
            self._promote(keys, places, end_ns)
        else:
            for key in keys:
                self._give_up(key, self._tiers)
        self.refused(plan)
        return end_ns

    def refused(self, plan: Plan) -> None:
        """Count the blocks that were found and are computed nevertheless."""
        for level, blocks in Counter(plan.places[plan.blocks :]).items():
            self._tiers[level].counts["refused"] += blocks

    # -- parts -------------------------------------------------------------------------------------------

    def _find(self, keys: Sequence[int], now_ns: int) -> list[int]:
        """Return the first tier where each block can be read now, up to the first block that is nowhere."""
        places: list[int] = []
        holders = [(level, tier.store.held) for level, tier in enumerate(self._tiers)]
        for key in keys:
            for level, held in holders:
                if held.get(key, _NEVER) <= now_ns:
                    places.append(level)
                    break
            else:
                break
        return places

    def _load_end_ns(self, places: Sequence[int], now_ns: int) -> int:
        return max(self._tiers[level].load_end_ns(n, now_ns) for level, n in Counter(places).items())

    def _hold(self, level: int, blocks: Blocks, how: str = WRITTEN) -> None:
        """Put blocks in a tier; what it drops goes to the next."""
        for tier in self._tiers[level:]:
            if not blocks:
                return
            blocks = tier.hold(blocks, how, self._now_ns)
            how = WRITTEN

    def _touch(self, keys: Sequence[int]) -> None:
        """Mark blocks as just used wherever they are, the end of the chain first."""
        for tier in self._tiers:
            held = tier.store.held
            for key in reversed(keys):
                if key in held:
                    held.move_to_end(key)

    def _promote(self, keys: Sequence[int], places: Sequence[int], end_ns: int) -> None:
        """Copy loaded blocks to the tiers above the one that had them; they are there at `end_ns`."""
        for level in range(max(places) - 1, -1, -1):
            lower = [key for key, place in zip(keys, places, strict=True) if place > level]
            self._hold(level, dict.fromkeys(reversed(lower), end_ns), PROMOTED)

    def _give_up(self, key: int, tiers: Sequence[Tier]) -> None:
        """Take a block out of tiers that have it: it is in HBM or on its way to the first tier."""
        for tier in tiers:
            if key in tier.store.held:
                tier.give_up(key)


def _cuts(places: Sequence[int]) -> list[int]:
    """Return the numbers of blocks worth considering: all, or all before the first of a slower tier."""
    cuts: list[int] = []
    slowest = places[0]
    for index, level in enumerate(places):
        if level > slowest:
            cuts.append(index)
            slowest = level
    return [*cuts, len(places)]
