"""Where requests come from: recorded times (open loop), or clients that wait for answers (closed loop).

Rows of one session always follow each other: a turn is sent `think_ns` after the end of the previous answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator

import numpy as np
from simpy.events import Event, Timeout

from simserve.core import Request, Trace
from simserve.sim.clock import Clock
from simserve.sim.cluster import Cluster
from simserve.sim.specs import Clients
from simserve.units import NS_PER_S

_NO_LIMIT = 1 << 60


class Source:
    """Sends the trace's requests to the cluster."""

    def __init__(self, env: Clock, trace: Trace, cluster: Cluster, clients: Clients) -> None:
        """The process that sends begins with the clock."""
        closed_loop, give_up_ns = clients.closed_loop, clients.give_up_ns
        self._give_up_ns = give_up_ns
        self._env = env
        self._cluster = cluster
        self._prompt = trace.prompt_tokens.tolist()
        self._max_tokens = None if trace.max_tokens is None else trace.max_tokens.tolist()
        self._priority = None if trace.priority is None else trace.priority.tolist()
        self._think_ns = None if trace.think_ns is None else trace.think_ns.tolist()
        self._next_turn, first_turns = _turns(trace)
        self._closed = closed_loop is not None
        self._backlog: Iterator[int] = iter(first_turns)
        self._due: deque[int] = deque()
        """Rows to send now."""
        self._sending = False
        cluster.on_end = self._after
        if give_up_ns is not None:
            cluster.gave_up_words = f"client gave up after {give_up_ns / NS_PER_S:g} s"
        if closed_loop is None:
            env.process(self._replay(first_turns, trace.arrival_ns.tolist()))
        else:
            env.process(self._fill(closed_loop))

    def _replay(self, rows: list[int], arrival_ns: list[int]) -> Generator[Event, None, None]:
        """Send each first turn at its time."""
        env = self._env
        send = self._submit if self._next_turn is None else self._send
        for row in rows:
            delay_ns = arrival_ns[row] - env.now
            if delay_ns:
                yield Timeout(env, delay_ns)
            send(row)

    def _fill(self, clients: int) -> Generator[Event, None, None]:
        """Let every client begin at time 0."""
        yield Timeout(self._env, 0)
        for _ in range(clients):
            self._send_next()

    def _send_next(self) -> None:
        """Let a client that is free think about the next row of the trace, and send it."""
        row = next(self._backlog, None)
        if row is not None:
            self._think(row)

    def _think(self, row: int) -> None:
        """Send a row when its client has thought for as long as the row says."""
        think_ns = self._think_ns[row] if self._think_ns else 0
        if not think_ns:
            self._send(row)
        else:
            Timeout(self._env, think_ns).callbacks.append(lambda _: self._send(row))

    def _send(self, row: int) -> None:
        """Send a row, and whatever becomes due by that: a refused request ends at once, and others follow."""
        self._due.append(row)
        if self._sending:
            return
        self._sending = True
        while self._due:
            self._submit(self._due.popleft())
        self._sending = False

    def _submit(self, row: int) -> None:
        """Give a row's request to the cluster, and let its client give up if it waits too long."""
        limit = _NO_LIMIT if self._max_tokens is None else self._max_tokens[row]
        priority = 0 if self._priority is None else self._priority[row]
        request = Request(row, self._env.now, self._prompt[row], limit, priority)
        self._cluster.submit(request)
        if self._give_up_ns is not None:
            replica = max(0, self._cluster.recorder.replica[row])  # the first while the router holds it back
            away_ns = self._cluster.replicas[replica].spec.client_ns
            if away_ns:
                unseen = Timeout(self._env, max(0, self._give_up_ns - away_ns))
                unseen.callbacks.append(lambda _: self._cluster.lose_client(request))
            late = Timeout(self._env, self._give_up_ns)
            late.callbacks.append(lambda _: self._cluster.give_up(request))

    def _after(self, row: int) -> None:
        """A request ended: its session goes on, or in a closed loop the client takes the next one."""
        turn = self._next_turn[row] if self._next_turn else -1
        if turn >= 0:
            self._think(turn)
        elif self._closed:
            self._send_next()


def _turns(trace: Trace) -> tuple[list[int] | None, list[int]]:
    """Return for each row the next turn of its session (or -1), and the rows that are first turns."""
    rows = len(trace)
    if trace.session is None:
        return None, list(range(rows))
    order = np.argsort(trace.session, kind="stable")
    same = trace.session[order[1:]] == trace.session[order[:-1]]
    next_turn = np.full(rows, -1, dtype=np.int64)
    next_turn[order[:-1][same]] = order[1:][same]
    later = np.zeros(rows, dtype=bool)
    later[order[1:][same]] = True
    return next_turn.tolist(), np.flatnonzero(~later).tolist()
