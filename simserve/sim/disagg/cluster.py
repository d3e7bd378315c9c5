"""A cluster whose replicas are split into prefill and decode: who gets which half, and what happens between.

A request goes to a prefill replica as a prompt with one token to produce; then, or at the same time if the
engine wants room there first, to a decode replica, as an ordinary arrival. What is between them is a
`Handover`. Requests for which a rule says so stay whole.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from simpy.events import Timeout

from simserve.core import Chunk, LinkResult, Request, SplitResult, Trace
from simserve.core.request import DecodeRequest, KvMoved, PrefillRequest
from simserve.errors import InvariantError
from simserve.sim.clock import Clock
from simserve.sim.cluster import Cluster, Progress, make_replica
from simserve.sim.disagg.kv_transfer import Handover, Passage, PrefillSide, Route, StageRecorder
from simserve.sim.disagg.links import LinkEnd, Links
from simserve.sim.disagg.role_switch import RoleSwitch
from simserve.sim.dispatch import Desk
from simserve.sim.recorder import Recorder
from simserve.sim.replica import Replica, World
from simserve.sim.specs import ReplicaSpec, SplitSpec

FAILED = "KV transfer failed"


class SplitCluster(Cluster):
    """All replicas of a run with a prefill/decode split."""

    def __init__(
        self,
        env: Clock,
        trace: Trace,
        specs: Sequence[ReplicaSpec],
        recorder: Recorder,
        fast_forward: bool,
        progress: Progress | None,
        split: SplitSpec,
    ) -> None:
        """Builds a replica per spec, which has the role that its spec says."""
        self.split = split
        self.stages = StageRecorder(len(trace))
        self._prefill_side = PrefillSide(self.stages.prefill, self.prompt_sampled, self.prompt_computed)
        self.links = Links(env)
        self._ends: list[tuple[LinkEnd, LinkEnd]] = []
        self._passages: dict[int, Passage] = {}
        self._local = 0
        self._failed = 0
        super().__init__(env, trace, specs, split.routers, recorder, fast_forward, progress)
        sides = ("decode",) if split.switch is None else ("prefill", "decode")
        self._tell_ended = None  # every side has a desk of its own
        self._narrow = min(specs, key=lambda spec: spec.max_model_len)
        """Who sets the limit for prompts."""
        self._answering = min((s for s in specs if s.role in sides), key=lambda spec: spec.max_model_len)
        """Who sets the limit for answers."""
        self._switch = None if split.switch is None else RoleSwitch(self, split.switch)

    # -- building --------------------------------------------------------------------------------------

    def _build(self, world: World, spec: ReplicaSpec, rank: int) -> Replica:
        side = self._prefill_side if spec.role == "prefill" else self
        replica = make_replica(world, spec, rank, side, self._table(spec), kv_transfer=self)
        spec.policy.mover = self  # pyright: ignore[reportAttributeAccessIssue]
        bytes_per_s = self.split.link_bytes_per_s.get(spec.pool, 0)
        self._ends.append((LinkEnd("out", bytes_per_s), LinkEnd("in", bytes_per_s)))
        return replica

    # -- roles -----------------------------------------------------------------------------------------

    def move(self, replica: Replica, role: str) -> None:
        """Give a replica another role: routers see it no longer, or again."""
        self._roles[replica.rank] = role
        for name, desk in self._desks.items():
            desk.replace(self.with_role(name))
        if role in ("prefill", "decode"):
            replica.outputs.report_to(self._prefill_side if role == "prefill" else self)

    def has_business(self, replica: Replica) -> bool:
        """Return True if a request on its way needs the replica."""
        return any(replica in (passage.source, passage.target) for passage in self._passages.values())

    # -- arrivals --------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """A request arrives: refuse it, keep it whole, or send its prompt to a prefill replica."""
        now_ns = self.env.now
        self.recorder.arrive(request, now_ns)
        if not self._narrow.max_model_len > request.prompt_tokens >= 1:
            self._refuse(request, self._narrow)
            return
        target = None
        if self.split.target_first and not self._keeps_apart:
            target = self._desks["decode"].choose(request, now_ns)
        if self.split.local is not None and self._stays(request, target):
            self._local += 1
            if target is not None:
                self._send_whole(request, target)
            else:
                self._desks["mixed"].place(request, now_ns, self._send_whole)
            return
        if self.split.target_first and target is None:
            target = self._desks["decode"].choose(request, now_ns)
        self._desks["prefill"].place(request, now_ns, partial(self._begin, target=target))

    def _begin(self, request: Request, source: Replica, target: Replica | None) -> None:
        """Compute a prompt on a prefill replica; `target` decodes, if it is known already."""
        passage = Passage(request, self._length(request, self._answering), source)
        passage.handover = Handover(
            self.env, self.links, self.split, request.prompt_tokens, lambda: self._moved(passage)
        )
        self._passages[request.id] = passage
        self.stages.prefill_replica[request.id] = source.rank
        if target is not None:
            passage.target = target
        if self.split.room_first:
            self._send_half(passage)
        else:
            source.enqueue(passage.prefill, 1)

    @property
    def _keeps_apart(self) -> bool:
        """True if requests that are not split go to replicas of their own."""
        return "mixed" in self._desks

    def _stays(self, request: Request, target: Replica | None) -> bool:
        """Return True if a rule keeps the request whole."""
        rule, now_ns = self.split.local, self.env.now
        assert rule is not None
        holders = self.with_role("decode") if target is None else [target]
        cached = max(replica.cached_tokens(request, now_ns) for replica in holders)
        if request.prompt_tokens - cached <= rule.uncached_tokens:
            return True
        if rule.prefill_queue is None:
            return False
        prefill = self.with_role("prefill")
        return sum(r.waiting_requests for r in prefill) >= rule.prefill_queue * len(prefill)

    def _send_whole(self, request: Request, replica: Replica) -> None:
        """Send a request that is not split."""
        self._send(request, replica, self._length(request, replica.spec))

    def _send(self, request: Request, replica: Replica, length: int) -> None:
        self.recorder.replica[request.id] = replica.rank
        replica.enqueue(request, length)

    def _send_half(self, passage: Passage) -> None:
        """Send the decoding half; from now on its KV knows its way."""
        source, target = passage.source, passage.target
        assert target is not None
        rates = self.split.reshard_bytes_per_s
        passage.handover.route = Route(
            (self._ends[source.rank][0], self._ends[target.rank][1]),
            rates.get((source.spec.pool, target.spec.pool), 0),
        )
        self._send(passage.decode, target, passage.length)

    # -- between the halves ----------------------------------------------------------------------------

    def computes(self, chunks: Sequence[Chunk], start_ns: int, end_ns: int) -> None:
        """A step computes these parts of prompts: their KV may leave, if it does not wait for the rest."""
        if self.split.overlap == "request":
            return
        for request, tokens, cached, _ in chunks:
            if isinstance(request, PrefillRequest):
                end = min(cached + tokens, request.prompt_tokens)
                self._passages[request.id].handover.chunk(end, start_ns, end_ns)

    def prompt_sampled(self, request: Request) -> None:
        """The prefill side sampled its token."""
        self._desks["prefill"].first_token(request, self.env.now)

    def prompt_computed(self, request: Request) -> None:
        """The prompt is computed, and its KV stays where it is; whoever asked for it hears a little later."""
        passage = self._passages[request.id]
        self._desks["prefill"].ended(request, self.env.now)
        client_ns = 0 if self.split.room_first else passage.source.spec.client_ns
        if not client_ns:
            self._hand_over(passage)
        else:
            Timeout(self.env, client_ns).callbacks.append(lambda _: self._hand_over(passage))

    def _hand_over(self, passage: Passage) -> None:
        """Let the KV go, and send the decoding half unless it waits for it already."""
        now_ns = self.env.now
        self.stages.prefill_end_ns[passage.prefill.id] = now_ns
        passage.handover.computed(lambda: self._expired(passage))
        if passage.target is None:
            passage.target = self._desks["decode"].choose(passage.decode, now_ns)
        if not self.split.room_first:
            self._send_half(passage)

    def room_for(self, request: Request, cached_tokens: int) -> None:
        """The decoding side has room for a prompt (called by its policy)."""
        passage = self._passages[request.id]
        self.stages.room_ns[request.id] = self.env.now
        seed = self.split.seed * 1_000_003 + request.id
        rate = self.split.failure_rate
        passage.handover.fails = rate > 0 and random.Random(seed).random() < rate
        passage.handover.room(cached_tokens)
        if self.split.room_first:
            passage.source.enqueue(passage.prefill, 1)

    def has_room(self, request: Request) -> bool:
        """Return whether the decoding side has room for a prompt (called by the prefill side's policy)."""
        passage = self._passages.get(request.id)  # gone: the KV was moved, which the policy is yet to hear
        return passage is None or passage.handover.has_room

    def struck_off(self, request: Request) -> None:
        """A request that waited for KV is forgotten (called by its policy)."""
        self.replicas[self.recorder.replica[request.id]].meter.fail()

    def lost(self, request: Request) -> None:
        """A prefill replica gave up a prompt's KV (called by its policy)."""
        self._passages[request.id].handover.give_up()

    def _expired(self, passage: Passage) -> None:
        """Nobody came to read within the lease."""
        passage.source.deliver(KvMoved(passage.prefill))

    def _moved(self, passage: Passage) -> None:
        """The transfer is over, one way or the other."""
        row, handover = passage.prefill.id, passage.handover
        del self._passages[row]
        ok = not (handover.lost or handover.fails)
        self.stages.transfer_end_ns[row] = self.env.now
        self.stages.transfer_bytes[row] = handover.moved_bytes
        self.stages.transfer_ok[row] = int(ok)
        if not handover.lost:
            passage.source.deliver(KvMoved(passage.prefill))
        assert passage.target is not None
        self._failed += not ok
        fatal = not ok and self.split.on_failure == "error"
        passage.target.deliver(KvMoved(passage.decode, ok, fatal))
        if fatal:
            passage.target.outputs.forget(passage.decode)
            self._fail(passage.decode)
        if self._switch is not None:
            self._switch.drained()

    def _fail(self, request: Request) -> None:
        self.recorder.note(request, FAILED)
        self.recorder.ended += 1
        self.recorder.end_ns = max(self.recorder.end_ns, self.env.now)
        self._ended(request)

    # -- ends ------------------------------------------------------------------------------------------

    def first_token(self, request: Request) -> None:
        """A request's first token was shown."""
        self._desk_of(request).first_token(request, self.env.now)

    def give_up(self, request: Request) -> None:
        """Clients that give up are not simulated with a split."""
        raise InvariantError("clients that give up are not simulated with a prefill/decode split")

    def _ended(self, request: Request, client_ns: int = 0, sent: bool = True) -> None:
        if self.recorder.replica[request.id] >= 0:
            self._desk_of(request).ended(request, self.env.now)
        super()._ended(request, client_ns, sent)
        if self._switch is not None:
            self._switch.drained()

    def _desk_of(self, request: Request) -> Desk:
        whole = not isinstance(request, DecodeRequest) and self._keeps_apart
        return self._desks["mixed" if whole else "decode"]

    def result(self, columns: dict[str, NDArray[np.int64]]) -> SplitResult:
        """Return what the split adds, and make the request `columns` true for both sides."""
        return SplitResult(
            columns=self.stages.columns(columns),
            links=tuple(
                LinkResult(r.spec.name, end.name, end.bytes_per_s, end.moved_bytes, end.busy_ns)
                for r, ends in zip(self.replicas, self._ends, strict=True)
                for end in ends
                if end.bytes_per_s
            ),
            first_token=self.split.engine.first_token,
            room_first=self.split.room_first,
            kept_local=self._local,
            failed_transfers=self._failed,
            role_changes=0 if self._switch is None else self._switch.changes,
        )
