"""Run a workload on a cluster: the only door to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.core import PoolFacts, ReplicaResult, Result, Status, Trace
from simserve.core.result import ABSENT
from simserve.errors import InvariantError
from simserve.router.base import Router
from simserve.sim.clock import Clock
from simserve.sim.cluster import Cluster, Progress
from simserve.sim.disagg.cluster import SplitCluster
from simserve.sim.recorder import Recorder
from simserve.sim.replica import Replica
from simserve.sim.source import Source
from simserve.sim.specs import Clients, ReplicaSpec, SplitSpec
from simserve.sim.step_log import StepLog
from simserve.sim.step_times import add_times

_STEADY_MARGIN = 10
"""Percent of the arrivals at either end that do not count as steady."""


def simulate(
    trace: Trace,
    replicas: Sequence[ReplicaSpec],
    router: Router | SplitSpec,
    pools: Sequence[PoolFacts] = (),
    *,
    clients: Clients = Clients(),
    fast_forward: bool = True,
    progress: Progress | None = None,
    step_log: StepLog | None = None,
) -> Result:
    """Replay `trace` on `replicas` behind `router`.

    With a split in its place, which has routers of its own, requests pass from prefill to decode replicas.
    Without fast_forward every step is an event of its own (same result, slower). Policies in `replicas` must
    be fresh. `step_log` records the steps. Raises InvariantError, naming the requests, if the run cannot go
    on.
    """
    env = Clock()
    margin = len(trace) * _STEADY_MARGIN // 100
    steady_window = (margin, len(trace) - margin)
    recorder = Recorder(len(trace), steady_window)
    if isinstance(router, SplitSpec):
        cluster = SplitCluster(env, trace, replicas, recorder, fast_forward, progress, router)
    else:
        cluster = Cluster(env, trace, replicas, {"mixed": router}, recorder, fast_forward, progress)
    if step_log is not None:
        step_log.watch(cluster.replicas)
    Source(env, trace, cluster, clients)
    env.run()
    for replica in cluster.replicas:
        if replica.outstanding_requests:
            replica.outputs.stuck("nothing is left that could happen")
    if recorder.ended != len(trace):
        raise InvariantError(
            f"the run ended with {len(trace) - recorder.ended} of {len(trace)} requests unfinished: "
            f"first row {int(np.argmax(np.array(recorder.status) == Status.UNFINISHED))}"
        )
    groups = tuple(group.result() for group in cluster.groups)
    provenance_ns: dict[str, float] = {}
    op_ns: dict[str, float] = {}
    pool_op_ns: dict[str, dict[str, float]] = {}
    for key, table in cluster.tables.items():
        of_table: dict[str, float] = {}
        table.collect(recorder.gaps, provenance_ns, of_table)
        add_times(op_ns, of_table)
        for pool in {spec.pool: None for spec in replicas if id(spec.latency) == key}:
            add_times(pool_op_ns.setdefault(pool, {}), of_table)
    for group in groups:
        add_times(op_ns, group.phases_ns)
        add_times(pool_op_ns.setdefault(group.pool, {}), group.phases_ns)
    gaps, steady_gaps = recorder.gaps.results()
    columns = recorder.columns([spec.client_ns for spec in replicas])
    drafts = any(spec.acceptance is not None for spec in replicas)
    verifications = _by_row(recorder.verifications, len(trace)) if drafts else None
    dropped_ns = _by_row(recorder.dropped_ns, len(trace)) if recorder.dropped_ns else None
    split_result = cluster.result(columns) if isinstance(cluster, SplitCluster) else None
    return Result(
        **columns,  # pyright: ignore[reportArgumentType]
        prompt_tokens=trace.prompt_tokens,
        reasons=tuple(recorder.reasons),
        gaps=gaps,
        steady_gaps=steady_gaps,
        steady_window=steady_window,
        replicas=tuple(_replica_result(replica) for replica in cluster.replicas),
        pools=tuple(pools),
        provenance_ns=provenance_ns,
        end_ns=recorder.end_ns,
        split=split_result,
        groups=groups,
        verifications=verifications,
        dropped_ns=dropped_ns,
        op_ns=op_ns,
        pool_op_ns=pool_op_ns,
        wasted_tokens=recorder.wasted_tokens,
    )


def _by_row(values: Mapping[int, int], rows: int) -> NDArray[np.int64]:
    """Return the values of some rows as a column, -1 for the others."""
    column = np.full(rows, ABSENT, np.int64)
    column[list(values)] = list(values.values())
    return column


def _replica_result(replica: Replica) -> ReplicaResult:
    spec, meter, timeline = replica.spec, replica.meter, replica.meter.timeline.result()
    decode_tokens = int(timeline.decode_tokens.sum())
    return ReplicaResult(
        name=spec.name,
        pool=spec.pool,
        gpus=spec.gpus,
        kv_blocks=spec.kv_blocks,
        block_size=spec.block_size,
        steps=int(timeline.steps.sum()),
        wakeups=meter.wakeups,
        busy_ns=meter.busy_ns,
        prefill_tokens=meter.prefill_tokens,
        decode_tokens=decode_tokens,
        recomputed_tokens=meter.recomputed_tokens,
        preemptions=meter.preemptions,
        linear_tokens=meter.prefill_tokens + decode_tokens,
        prefill_pairs=meter.prefill_pairs,
        decode_pairs=meter.decode_pairs,
        timeline=timeline,
        kv_tiers=replica.policy.kv_tiers,
        drafting=replica.outputs.drafting(),
        waited_ns=tuple(meter.waited_ns),
    )
