"""The cluster: replicas behind one router, and what happens when a request arrives or ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from simpy.events import Timeout

from simserve.core import Request, Status, Trace
from simserve.router.base import Router
from simserve.sim.clock import Clock, Front
from simserve.sim.decode_batch import Lane
from simserve.sim.dispatch import Desk
from simserve.sim.outputs import Outputs, Sink
from simserve.sim.pace.lockstep import build_groups
from simserve.sim.pace.pipeline import PipelineReplica
from simserve.sim.pace.rank import Rank
from simserve.sim.recorder import Recorder
from simserve.sim.replica import KvObserver, Replica, World
from simserve.sim.spec_decode import DraftOutputs, DraftTimes
from simserve.sim.specs import ReplicaSpec
from simserve.sim.step_times import DecodeTable, StepTimes
from simserve.sim.uneven import LengthLane, LevelTable, UnevenTimes, table_of, uneven_of

Progress = Callable[[int, int, int], None]
"""Called with (now_ns, requests ended, requests in all)."""

_PROGRESS_EVERY = 256


class Cluster:
    """All replicas of a run."""

    def __init__(
        self,
        env: Clock,
        trace: Trace,
        specs: Sequence[ReplicaSpec],
        routers: Mapping[str, Router],
        recorder: Recorder,
        fast_forward: bool,
        progress: Progress | None,
    ) -> None:
        """Builds a replica per spec; replicas with the same latency share one decode table.

        `routers` are those of the replicas of each role.
        """
        self.env = env
        self.recorder = recorder
        self.front = Front()
        self.on_end: Callable[[int], None] = lambda row: None
        """Set by the source: called with the row of each request that ended."""
        self.gave_up_words = "client gave up"
        """The reason of requests that are abandoned; the source knows the patience."""
        self._unseen: set[int] = set()
        """Requests that still waited at the router when `lose_client` was called."""
        self._progress = progress
        self._total = len(trace)
        self._output_tokens = trace.output_tokens.tolist()
        self.tables: dict[int, DecodeTable] = {}
        world = World(env, self.front, fast_forward)
        self.replicas = [self._build(world, spec, rank) for rank, spec in enumerate(specs)]
        self.groups = build_groups(env, self.front, self.replicas, recorder.gaps)
        self._roles: list[str] = [spec.role for spec in specs]
        self._desks = {role: Desk(router, self.with_role(role)) for role, router in routers.items()}
        desk = self._desks.get("mixed")
        self._desk = desk if desk is not None and desk.asks else None
        """Who routes arrivals; None: they all go to the first replica, or the sides of a split have desks."""
        self._tell_first_token = self._desk.first_token_hook if self._desk is not None else None
        self._tell_ended = self._desk.ended_hook if self._desk is not None else None

    def _build(self, world: World, spec: ReplicaSpec, rank: int) -> Replica:
        return make_replica(world, spec, rank, self, self._table(spec))

    def _table(self, spec: ReplicaSpec) -> DecodeTable:
        return self.tables.setdefault(id(spec.latency), table_of(spec.latency))

    def submit(self, request: Request) -> None:
        """A request arrives: route it, then admit or refuse it."""
        desk, now_ns = self._desk, self.env.now
        self.recorder.arrive(request, now_ns)
        replica = self.replicas[0] if desk is None else desk.choose(request, now_ns)
        if replica is not None:
            self._admit(request, replica)
        elif desk is not None:
            desk.hold(request, self._admit_held)

    def with_role(self, role: str) -> list[Replica]:
        """Return the replicas that have a role now."""
        return [r for r, mine in zip(self.replicas, self._roles, strict=True) if mine == role]

    def _admit(self, request: Request, replica: Replica) -> None:
        """A request reaches the replica that it was routed to: admit or refuse it."""
        self.recorder.replica[request.id] = replica.rank
        spec = replica.spec
        if spec.max_model_len > request.prompt_tokens >= 1:
            replica.enqueue(request, self._length(request, spec))
        else:
            self._refuse(request, spec)

    def _admit_held(self, request: Request, replica: Replica) -> None:
        """Admit a request that waited at the router: its client may have given up meanwhile."""
        self._admit(request, replica)
        if request.id in self._unseen:
            replica.lose_client(request)

    def _refuse(self, request: Request, spec: ReplicaSpec) -> None:
        """Refuse a request that a replica can never serve."""
        self.recorder.refuse(request, _refusal(request, spec), self.env.now)
        self._ended(request)

    def _length(self, request: Request, spec: ReplicaSpec) -> int:
        """Return how long the answer will be; note it if a limit cuts it short."""
        length = self._output_tokens[request.id]
        room = spec.max_model_len - request.prompt_tokens
        if length > room or length > request.max_tokens:
            self.recorder.note(request, _cut(request, spec))
            length = min(room, request.max_tokens)
        return length

    def first_token(self, request: Request) -> None:
        """A request's first token was shown."""
        if self._tell_first_token is not None:
            self._tell_first_token(request, self.env.now)

    def complete(self, request: Request, output_tokens: int) -> None:
        """A request's last token was shown."""
        self.recorder.complete(request, output_tokens, self.env.now)
        self._ended(request, self.replicas[self.recorder.replica[request.id]].spec.client_ns)

    def give_up(self, request: Request) -> None:
        """The request's client gives up; the engine hears of it at once."""
        if self.recorder.status[request.id] != Status.UNFINISHED:
            return
        if self._desk is not None and self._desk.withdraw(request):
            self.recorder.note(request, self.gave_up_words)
            self.recorder.abandon(request, 0, 0, self.env.now)
            self._ended(request, sent=False)
        else:
            self.replicas[self.recorder.replica[request.id]].give_up(request)

    def lose_client(self, request: Request) -> None:
        """What the engine makes from now on reaches the client too late: it gives up before it sees that."""
        if self.recorder.status[request.id] != Status.UNFINISHED:
            return
        if self.recorder.replica[request.id] < 0:
            self._unseen.add(request.id)
        else:
            self.replicas[self.recorder.replica[request.id]].lose_client(request)

    def abandon(self, request: Request, output_tokens: int, seen_tokens: int) -> None:
        """The engine dropped a request whose client gave up after `seen_tokens`."""
        self.recorder.note(request, self.gave_up_words)
        self.recorder.abandon(request, output_tokens, seen_tokens, self.env.now)
        self._ended(request)

    def _ended(self, request: Request, client_ns: int = 0, sent: bool = True) -> None:
        """A request ended: tell the router that sent it at once, and the client when it sees the end."""
        if sent and self._tell_ended is not None:
            self._tell_ended(request, self.env.now)
        if self._progress and not self.recorder.ended % _PROGRESS_EVERY:
            self._progress(self.env.now, self.recorder.ended, self._total)
        if not client_ns:
            self.on_end(request.id)
        else:
            Timeout(self.env, client_ns).callbacks.append(lambda _: self.on_end(request.id))


def _refusal(request: Request, spec: ReplicaSpec) -> str:
    """Return why the replica can never serve the request."""
    if request.prompt_tokens < 1:
        return "empty prompt"
    return f"prompt of max_model_len {spec.max_model_len} tokens or more ({spec.limit_reason})"


def _cut(request: Request, spec: ReplicaSpec) -> str:
    """Return what cuts the request's answer short."""
    if request.max_tokens <= spec.max_model_len - request.prompt_tokens:
        return "answer cut at its max_tokens"
    return f"answer cut at max_model_len {spec.max_model_len} ({spec.limit_reason})"


def make_replica(
    world: World,
    spec: ReplicaSpec,
    rank: int,
    sink: Sink,
    table: DecodeTable,
    kv_transfer: KvObserver | None = None,
) -> Replica:
    """Return a replica: its outputs, step times and pace are those that the spec asks for."""
    gaps, uneven = sink.recorder.gaps, uneven_of(spec.latency)
    if spec.acceptance is not None:
        outputs = DraftOutputs(world.env, spec, sink, spec.acceptance)
        times = DraftTimes(table, world.fast_forward)
    elif uneven is not None:
        assert isinstance(table, LevelTable)
        lanes = [LengthLane(gaps, index) for index in range(spec.latency.stages)]
        outputs = Outputs(world.env, spec, sink, lanes)
        times = UnevenTimes(table, uneven)
    else:
        lanes = [Lane(gaps, index) for index in range(spec.latency.stages)]
        outputs = Outputs(world.env, spec, sink, lanes)
        times = StepTimes(table)
    pace = Replica
    if spec.group is not None:
        pace = Rank
    elif spec.latency.stages > 1:
        pace = PipelineReplica
    return pace(world, spec, rank, outputs, times, kv_transfer)
