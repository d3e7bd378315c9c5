"""A replica with pipeline parallelism: as many microbatches in flight as there are stages.

Follows vLLM's engine core with a batch queue, and TensorRT-LLM's executor, which does the same: while fewer
microbatches are in flight than there are stages, a further one is scheduled from what is not in flight, and
results come back in order. So a slot of the pipeline waits for its result and for the engine's own work
before it starts anew: nothing overlaps with that but the other microbatches. A stage works on one microbatch
at a time, for its own time. Each microbatch is an event of its own: there is no fast-forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import NamedTuple

from simpy.events import Event

from simserve.core import Batch, Wait
from simserve.sim.clock import Boundary
from simserve.sim.decode_batch import Run
from simserve.sim.replica import Replica


class _Flight(NamedTuple):
    """A microbatch in flight."""

    batch: Batch
    lane: int
    run: Run | None
    start_ns: int
    end_ns: int


class PipelineReplica(Replica):
    """Pipeline stages behind one scheduler."""

    _landed_ns = 0
    """When the last microbatch left the last stage."""
    _host_free_ns = 0
    """Until when the engine prepares microbatches."""

    def serve(self) -> Generator[Event, None, None]:
        """Fill the pipeline from the scheduler; when full, or nothing is ready, take the oldest result."""
        env = self.env
        stages = self.latency.stages
        stage_free_ns = [0] * stages
        free_lanes = list(range(stages))
        flights: deque[_Flight] = deque()
        while True:
            decision: Batch | Wait = Wait()
            if free_lanes:
                decision = self.policy.next_batch(env.now, free_lanes[-1])
            if isinstance(decision, Batch) and decision.tokens:
                flights.append(self._launch(decision, free_lanes.pop(), stage_free_ns))
                continue
            if isinstance(decision, Batch):
                self.outputs.empty(decision, env.now, free_lanes[-1])
            elif not flights:
                yield from self.wait(decision)
                self.woke()
            if not flights:
                continue
            delay_ns = flights[0].end_ns - env.now
            if free_lanes:
                yield from self.sleep(delay_ns)
            else:
                yield Boundary(env, self.order, delay_ns)
            if self.woke() == flights[0].end_ns:
                free_lanes.append(self._land(flights.popleft()))

    def _launch(self, batch: Batch, lane: int, stage_free_ns: list[int]) -> _Flight:
        """Prepare a microbatch and send it through the stages, each of which it holds for its step time."""
        now_ns = self.env.now
        self._lane = self.outputs.lanes[lane]
        self.outputs.begin(batch, now_ns)
        run = None
        if batch.chunks:
            duration_ns = self.times.step_ns(batch, self._lane)
            if self.kv_transfer is not None:
                self.kv_transfer.computes(batch.chunks, now_ns, now_ns + duration_ns)
        else:
            run = Run(now_ns, *self.times.page_of(batch, self._lane), 1)
            duration_ns = run.end_ns(1) - now_ns
        latency, chunks = self.latency, batch.chunks
        hop_ns = latency.hop_ns(batch.tokens)
        sampled = batch.decodes + sum(chunk.last for chunk in chunks)
        host_ns = latency.host_ns(sampled, len(chunks), self.policy.running)
        self._host_free_ns = max(now_ns, self._host_free_ns) + host_ns
        start_ns = end_ns = max(self._host_free_ns, stage_free_ns[0])
        stages_ns = latency.stage_ns(duration_ns, batch.decodes, batch.decode_context, chunks)
        for stage, free_ns in enumerate(stage_free_ns):
            arrival_ns = end_ns + hop_ns if stage else end_ns
            end_ns = max(arrival_ns, free_ns) + stages_ns[stage]
            stage_free_ns[stage] = end_ns
        return _Flight(batch, lane, run, start_ns, end_ns)

    def _land(self, flight: _Flight) -> int:
        """Book a microbatch that has left the last stage; return its lane.

        Its interval begins when the one before it landed, so that the replica's time is counted once.
        """
        start_ns = max(flight.start_ns, self._landed_ns)
        self._landed_ns = flight.end_ns
        if flight.run is None:
            self.outputs.step(flight.batch, start_ns, flight.end_ns, flight.lane)
        else:
            self.outputs.run(flight.batch, flight.run._replace(start_ns=start_ns), flight.end_ns, flight.lane)
        return flight.lane
