"""One replica: whatever steps together, as a SimPy process that waits, decides, lets time pass, outputs.

Between two decisions nothing inside can change the batch, so consecutive equal steps are one event
(`fast_forward`); an arrival that might change the decision cuts the run: the step in flight ends, and the
policy decides again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple, Protocol

from simpy.events import Event

from simserve.core import Batch, Chunk, Request, Wait
from simserve.core.request import KvMoved
from simserve.latency.base import PAGE
from simserve.sim.clock import Boundary, Clock, Front, WakeUp, order_of
from simserve.sim.decode_batch import Run
from simserve.sim.outputs import Outputs
from simserve.sim.specs import ReplicaSpec
from simserve.sim.step_times import Lookahead, StepTimes
from simserve.sim.view import View


class World(NamedTuple):
    """What all replicas of a run share."""

    env: Clock
    front: Front
    fast_forward: bool


class KvObserver(Protocol):
    """Hears of prompts as they are computed, so that their KV can leave."""

    def computes(self, chunks: Sequence[Chunk], start_ns: int, end_ns: int) -> None:
        """A step computes these parts of prompts."""
        ...


class Replica:
    """Serves the requests that the router gives it."""

    def __init__(
        self,
        world: World,
        spec: ReplicaSpec,
        rank: int,
        outputs: Outputs,
        times: StepTimes,
        kv_transfer: KvObserver | None = None,
    ) -> None:
        """`rank` orders replicas whose steps end at one instant; `kv_transfer` is set in a split."""
        env = world.env
        self.env = env
        self.spec = spec
        self.rank = rank
        self.order = order_of(rank)
        self.policy = spec.policy
        self.latency = spec.latency
        self.front = world.front
        self.fast_forward = world.fast_forward
        self.outputs = outputs
        self.times = times
        self.kv_transfer = kv_transfer
        self.meter = self.outputs.meter
        self._idle: WakeUp | None = None
        self._sleep: Boundary | None = None
        """The boundary slept towards, if an arrival may bring it forward."""
        self._lane = self.outputs.lanes[0]
        self._run_end: Boundary | None = None
        """The end of a run of steps, if it has not been brought forward."""
        self._run: Run | None = None
        self._given_up: list[Request] = []
        """Requests whose clients gave up, not dropped yet."""
        self._lookahead = Lookahead() if spec.policy.plans_ahead else None
        self.meter.lookahead = self._lookahead
        self.view: View | None = None
        """What a router with a refresh interval sees; set by the cluster."""
        self.process = env.process(self.serve())

    # -- seen by the router ----------------------------------------------------------------------------

    @property
    def outstanding_requests(self) -> int:
        """Requests given to the replica and not finished."""
        return len(self.outputs.answers)

    @property
    def waiting_requests(self) -> int:
        """Requests in the scheduler's queue, or on their way into it."""
        held = self._lookahead.held if self._lookahead is not None else 0
        return self.policy.waiting + held

    @property
    def running_requests(self) -> int:
        """Requests that hold KV."""
        return self.policy.running

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        return self.spec.block_size

    @property
    def kv_blocks(self) -> int:
        """Usable KV blocks."""
        return self.spec.kv_blocks

    @property
    def max_num_batched_tokens(self) -> int | None:
        """Prompt tokens of one step, as the engine publishes it."""
        return self.spec.max_num_batched_tokens

    def outstanding_tokens(self, now_ns: int) -> int:
        """Return prompt tokens and tokens shown by now, of all outstanding requests."""
        return self.tokens_at(now_ns, self.front.passed(now_ns, self.rank))

    def kv_use(self, now_ns: int) -> float:
        """Return the share of KV blocks that requests hold now."""
        return self.kv_use_at(now_ns, self.front.passed(now_ns, self.rank))

    def cached_tokens(self, request: Request, now_ns: int) -> int:
        """Return the tokens at the start of the request's prompt that the prefix cache holds now."""
        self._observe(now_ns, self.front.passed(now_ns, self.rank))
        return self.policy.cached_tokens(request)

    def cached_below(self, request: Request, now_ns: int) -> Mapping[str, int]:
        """Return the tokens after those in HBM that the KV tiers can give now, by kind of tier."""
        return self.policy.cached_below(request, now_ns)

    def tokens_at(self, time_ns: int, passed: bool) -> int:
        """Return the outstanding tokens at a time since the last change here.

        A step that ends just then counts only if `passed`; the same holds below.
        """
        tokens = self.outputs.known_tokens
        if self._run is not None:
            tokens += self._lane.tokens_in(self._run.steps_done(time_ns, passed))
        return tokens

    def kv_use_at(self, time_ns: int, passed: bool) -> float:
        """Return the share of KV blocks that requests hold at a time since the last change here."""
        self._observe(time_ns, passed)
        return self.policy.kv_used_blocks / self.spec.kv_blocks

    def _observe(self, time_ns: int, passed: bool) -> None:
        """Let the policy's memory be that of the step in flight, although a run is booked at its end."""
        if self._run is not None:
            steps = self._run.steps_begun(time_ns, passed)
            if steps > 1:
                self.policy.settle(steps)

    def enqueue(self, request: Request, length: int) -> None:
        """Take in a request whose answer has `length` tokens."""
        if self.view is not None:
            self.view.catch_up(self.env.now)
        self.outputs.open(request, length)
        self.tell(request)

    def deliver(self, news: KvMoved) -> None:
        """Give news of KV to the scheduler as an arrival would come."""
        if self.view is not None:
            self.view.catch_up(self.env.now)
        self.tell(news)

    def tell(self, request: Request | KvMoved) -> None:
        """Give the scheduler an arrival when it may see it; interrupt a run that it might change."""
        if self._idle is not None:
            self.policy.add(request)
            self._idle.fire(self.order)
            self._idle = None
            return
        if self._lookahead is None or not self._lookahead.stepping:
            self.policy.add(request)
        else:
            self._lookahead.hold(request, self._steps_begun())
        if self._sleep is not None:
            self._bring_forward(self._sleep)

    def give_up(self, request: Request) -> None:
        """A client gave up: drop its request at the end of the step in flight."""
        self.lose_client(request)
        self._given_up.append(request)
        if self._run_end is not None:
            self._bring_forward(self._run_end, planned_steps=0)

    def lose_client(self, request: Request) -> None:
        """A client stops looking: from now on nothing is shown to it."""
        self.outputs.lose_client(request, self._steps_begun() - 1)

    # -- the process -----------------------------------------------------------------------------------

    def serve(self) -> Generator[Event, None, None]:
        """Life of the replica: wait, decide, let time pass, book the outcome."""
        env, outputs, policy, order = self.env, self.outputs, self.policy, self.order
        lookahead = self._lookahead
        now_ns = env.now
        while True:
            if self._given_up:
                self._given_up = [request for request in self._given_up if not outputs.drop(request)]
            decision = policy.next_batch(now_ns)
            if lookahead is not None and lookahead.decided(policy, isinstance(decision, Batch)):
                continue
            if isinstance(decision, Wait):
                yield from self.wait(decision)
                now_ns = self.woke()
            elif decision.chunks:
                outputs.begin(decision, now_ns)
                step_ns = self.times.step_ns(decision, self._lane)
                if self.kv_transfer is not None:
                    self.kv_transfer.computes(decision.chunks, now_ns, now_ns + step_ns)
                yield Boundary(env, order, step_ns)
                start_ns, now_ns = now_ns, self.woke()
                outputs.step(decision, start_ns, now_ns)
            elif not decision.decodes:
                outputs.empty(decision, now_ns)
            else:
                if decision.preempted or decision.stalled:
                    outputs.begin(decision, now_ns)
                run = self._run = self._plan(decision, now_ns)
                boundary = Boundary(env, order, run.end_ns(run.steps) - now_ns)
                if run.steps > 1:
                    self._run_end = boundary
                    if not decision.sealed:
                        self._sleep = boundary
                yield boundary
                now_ns = self.woke()
                run, self._run, self._sleep, self._run_end = self._run, None, None, None
                if lookahead is not None:
                    lookahead.steps_run(policy, run.steps)
                outputs.run(decision, run, now_ns)

    def woke(self) -> int:
        """Count a wake-up, mark this instant's boundary as reached, and return the time."""
        now_ns = self.env.now
        if self.view is not None:
            self.view.catch_up(now_ns)
        self.meter.wakeups += 1
        front = self.front
        if now_ns != front.now_ns:  # `reach` without a call
            front.now_ns, front.rank = now_ns, self.rank
        else:
            front.reach(now_ns, self.rank)
        return now_ns

    def wait(self, wait: Wait) -> Generator[Event, None, None]:
        """Sleep until an arrival, or until the policy wants to look again."""
        now_ns = self.env.now
        if wait.until_ns is None:
            self.expect_news()
            self._idle = WakeUp(self.env)
            yield self._idle
            if self.env.now > now_ns:
                self.meter.rest(now_ns, self.env.now, self.policy)
        elif wait.until_ns > now_ns:
            self.outputs.barren(1)
            yield from self.sleep(wait.until_ns - now_ns)
            if self.env.now > now_ns:
                self.meter.idle(now_ns, self.env.now, self.policy)
        else:
            self.outputs.stuck(f"the policy waits until {wait.until_ns} ns, which is not in the future")

    def expect_news(self) -> None:
        """Stop the run if nothing but an arrival would wake the policy, although requests wait.

        With a split they may wait for KV, or for room that others hold until their KV was read.
        """
        if self.kv_transfer is None and self.policy.waiting and not self.policy.running:
            self.outputs.stuck("the policy waits although nothing runs")

    def sleep(self, delay_ns: int) -> Generator[Event, None, None]:
        """Let `delay_ns` pass, or less: an arrival ends it."""
        self._sleep = Boundary(self.env, self.order, delay_ns)
        yield self._sleep
        self._sleep = None

    def _steps_begun(self) -> int:
        """Return the steps of the present run up to the one in flight (1 if there is no run)."""
        if self._run is None:
            return 1
        return self._run.steps_begun(self.env.now, self.front.passed(self.env.now, self.rank))

    def _bring_forward(self, boundary: Boundary, planned_steps: int = 1) -> None:
        """Let the replica decide at the end of the step in flight (now, if it is not in a run of steps).

        A scheduler that plans ahead has decided `planned_steps` more, which an arrival cannot change.
        """
        now_ns, run = self.env.now, self._run
        end_ns = now_ns
        if run is not None:
            steps = self._steps_begun()
            if self._lookahead is not None:
                steps = min(steps + planned_steps, run.steps)
            self._run = Run(run.start_ns, run.page, run.offset, steps)
            end_ns = run.end_ns(steps)
        sooner = boundary.bring_forward(self.order, end_ns - now_ns)
        self._sleep = None
        self._run_end = sooner if self._run_end is not None and planned_steps else None

    def _plan(self, batch: Batch, now_ns: int) -> Run:
        """Return the run of steps that nothing inside the replica can change."""
        lane, lookahead = self._lane, self._lookahead
        page, offset = self.times.page_of(batch, lane)
        if batch.repeats == 1 or not self.fast_forward or not lane.in_rhythm(now_ns):
            return Run(now_ns, page, offset, 1)
        if lookahead is not None and lookahead.unseen:
            return Run(now_ns, page, offset, 1)
        run = Run(now_ns, page, offset, lane.steps_to_end(min(batch.repeats, PAGE - offset)))
        if batch.until_ns is None:
            return run
        return run._replace(steps=run.steps_begun(batch.until_ns, passed=False))
