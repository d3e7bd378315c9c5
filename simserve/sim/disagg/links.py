"""Links between replicas as shared resources: every transfer gets its max-min fair share at both ends.

Models network cards (or NVLink, PCIe) as fluid: transfers through one end share it equally, what one of them
cannot use because of its other end goes to the others. Rates change only when a transfer begins or ends, so
an event per begin and end is all it takes. Everything is whole numbers: rates in bytes/s (a share is rounded
down, so that an end never gives more than it has), what is left of a transfer in bytes x 1e9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simpy.events import Timeout

from simserve.sim.clock import Clock
from simserve.units import NS_PER_S


class LinkEnd:
    """One direction of one replica's links, or anything else that transfers share."""

    __slots__ = ("busy_ns", "bytes_per_s", "flows", "moved_bytes", "name", "since_ns")

    def __init__(self, name: str, bytes_per_s: int) -> None:
        """`bytes_per_s` is what all links together achieve."""
        self.name = name
        self.bytes_per_s = bytes_per_s
        self.flows = 0
        """Transfers that use it now."""
        self.moved_bytes = 0
        """Bytes of the transfers that are over."""
        self.busy_ns = 0
        """Time in which somebody used it, up to when it was last idle."""
        self.since_ns = 0


class _Flow:
    """A transfer in progress."""

    __slots__ = ("done", "ends", "left", "rate", "size_bytes")

    def __init__(self, size_bytes: int, ends: Sequence[LinkEnd], done: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self.left = size_bytes * NS_PER_S
        """Bytes x 1e9 not moved yet."""
        self.ends = ends
        self.done = done
        self.rate = 0


class Links:
    """All transfers in progress, by the order in which they began."""

    def __init__(self, env: Clock) -> None:
        self._env = env
        self._flows: list[_Flow] = []
        self._now_ns = 0
        """Until when the flows' progress is counted."""
        self._plan = 0
        """Number of the plan in force: an event of an older one means nothing."""

    @property
    def active(self) -> int:
        """Transfers in progress."""
        return len(self._flows)

    def send(self, size_bytes: int, ends: Sequence[LinkEnd], done: Callable[[], None]) -> None:
        """Begin to move `size_bytes` (at least 1) through all of `ends`; `done` is called when it is over."""
        self._advance()
        for end in ends:
            if not end.flows:
                end.since_ns = self._env.now
            end.flows += 1
        self._flows.append(_Flow(size_bytes, ends, done))
        self._replan()

    def _advance(self) -> None:
        """Count what every flow has moved by now."""
        passed_ns = self._env.now - self._now_ns
        if passed_ns:
            for flow in self._flows:
                flow.left -= flow.rate * passed_ns
        self._now_ns = self._env.now

    def _replan(self) -> None:
        """Share the ends anew and wait for the first flow that will be over."""
        self._plan += 1
        if not self._flows:
            return
        share_out(self._flows)
        first_ns = min(-(-flow.left // flow.rate) for flow in self._flows)
        plan = self._plan
        Timeout(self._env, max(first_ns, 0)).callbacks.append(lambda _: self._end(plan))

    def _end(self, plan: int) -> None:
        """Take out the flows that are over, share anew, then tell."""
        if plan != self._plan:
            return
        self._advance()
        over = [flow for flow in self._flows if flow.left <= 0]
        self._flows = [flow for flow in self._flows if flow.left > 0]
        for flow in over:
            for end in flow.ends:
                end.flows -= 1
                end.moved_bytes += flow.size_bytes
                if not end.flows:
                    end.busy_ns += self._env.now - end.since_ns
        self._replan()
        for flow in over:
            flow.done()


def share_out(flows: Sequence[_Flow]) -> None:
    """Set the max-min fair rates: fill all alike, and fix those at an end as soon as it is full."""
    left = {end: end.bytes_per_s for flow in flows for end in flow.ends}
    if len(flows) == 1:
        flows[0].rate = min(left.values())
        return
    users = dict.fromkeys(left, 0)
    for flow in flows:
        for end in flow.ends:
            users[end] += 1
    unfixed = list(flows)
    while unfixed:
        tightest = min((end for end in left if users[end]), key=lambda end: left[end] // users[end])
        rate = max(left[tightest] // users[tightest], 1)
        rest = []
        for flow in unfixed:
            if tightest not in flow.ends:
                rest.append(flow)
                continue
            flow.rate = rate
            for end in flow.ends:
                left[end] -= rate
                users[end] -= 1
        unfixed = rest
