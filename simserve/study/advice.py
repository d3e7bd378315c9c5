"""Changes that would relieve what limits a run, each simulated in short before it is given.

The first requests of the workload are simulated with the deployment as it is and with each change, under the
same seed; a change that gains less than a threshold is not given. All of it simulates fewer requests than the
run itself. A run that meets its SLO, or has none and carries its
load, is not advised.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from simserve.deploy.build import Deployment, Parts, build
from simserve.deploy.pool import BuiltPool
from simserve.deploy.simulated import RunProgress
from simserve.deploy.workload import build_trace
from simserve.errors import UserError
from simserve.metrics import Summary
from simserve.metrics.bottlenecks import COMMUNICATES, LAUNCHES, NOTHING, Limit
from simserve.metrics.rates import GOODPUT, THROUGHPUT, Advice
from simserve.metrics.slo_verdict import MET
from simserve.metrics.stability import NOT_JUDGED, STABLE
from simserve.scenario.load import changed

# What may relieve each limit: the values to change, from a deployment and what limits its pools.


class Remedy(NamedTuple):
    """Values to change."""

    words: str
    settings: dict[str, Any]
    """By path, as `--set` names them."""


class _Pool:
    """One pool of a deployment, and what may be changed about it."""

    def __init__(self, deployment: Deployment, index: int) -> None:
        self._deployment = deployment
        self._pool: BuiltPool = deployment.pools[index]
        self._path = f"pools.{index}"
        self._index = index

    def fp8_kv(self) -> Remedy | None:
        """Half of the bytes per token: twice the blocks, and half of what attention reads."""
        if self._pool.spec.kv_dtype not in ("bf16", "fp16"):
            return None
        return Remedy(f"fp8 KV{self._of}", {f"{self._path}.kv_dtype": "fp8"})

    def fp8_weights(self) -> Remedy | None:
        """Half of the bytes of the weights, and twice the FLOP/s where the GPU has them."""
        if self._pool.spec.weights_dtype != "bf16" or "fp8" not in self._pool.gpu.peak:
            return None
        return Remedy(f"fp8 weights{self._of}", {f"{self._path}.weights_dtype": "fp8"})

    def slots(self) -> Remedy | None:
        """Twice the requests that run at once."""
        return self._option("more slots", "max_num_seqs", "max_running_requests")

    def budget(self) -> Remedy | None:
        """Twice the tokens of a step."""
        return self._option("larger token budget", "max_num_batched_tokens", "chunked_prefill_size")

    def replica(self) -> Remedy:
        """One more replica."""
        own = self._pool.spec.replicas
        return Remedy(f"another replica{self._of} ({own + 1})", {f"{self._path}.replicas": own + 1})

    def wider(self) -> Remedy | None:
        """Twice the tensor parallelism: on the same GPUs where replicas pair up."""
        spec = self._pool.spec
        if spec.dp * spec.ep * spec.pp > 1 or 2 * spec.tp > self._pool.gpu.gpus_per_node:
            return None
        tp = {f"{self._path}.tp": 2 * spec.tp}
        if spec.replicas % 2:
            return Remedy(f"tp {2 * spec.tp}{self._of}", tp)
        return Remedy(
            f"tp {2 * spec.tp} on the same GPUs{self._of}",
            tp | {f"{self._path}.replicas": spec.replicas // 2},
        )

    def narrower(self) -> Remedy | None:
        """Half of the tensor parallelism, and twice the replicas: fewer GPUs wait for each other."""
        spec = self._pool.spec
        if spec.dp * spec.ep > 1 or spec.tp % 2:
            return None
        return Remedy(
            f"tp {spec.tp // 2} on the same GPUs{self._of}",
            {f"{self._path}.tp": spec.tp // 2, f"{self._path}.replicas": 2 * spec.replicas},
        )

    def ratio(self) -> Remedy | None:
        """In a split, a replica of the other side: the same GPUs, another P:D ratio."""
        pools = [one.spec for one in self._deployment.pools]
        own = pools[self._index]
        sides = {"prefill", "decode"}
        if len(pools) != 2 or {one.role for one in pools} != sides:
            return None
        other = pools[1 - self._index]
        if other.replicas < 2 or self._gpus(self._index) != self._gpus(1 - self._index):
            return None
        return Remedy(
            f"{own.replicas + 1} {own.role} + {other.replicas - 1} {other.role} replicas",
            {
                f"{self._path}.replicas": own.replicas + 1,
                f"pools.{1 - self._index}.replicas": other.replicas - 1,
            },
        )

    def layer_by_layer(self) -> Remedy | None:
        """KV that leaves while the prompt is still being computed."""
        transfer = self._deployment.loaded.scenario.transfer
        if transfer is not None and transfer.overlap == "layer":
            return None
        return Remedy("KV transfer layer by layer", {"transfer.overlap": "layer"})

    def decoding_side(self) -> _Pool | None:
        """The pool that reads what this one computes; None without a split."""
        roles = [one.spec.role for one in self._deployment.pools]
        return _Pool(self._deployment, roles.index("decode")) if "decode" in roles else None

    @property
    def _of(self) -> str:
        return f" in pool {self._pool.spec.name}" if len(self._deployment.pools) > 1 else ""

    def _gpus(self, index: int) -> int:
        facts = self._deployment.pools[index].facts
        return facts.gpus_per_replica

    def _option(self, words: str, *names: str) -> Remedy | None:
        """Return twice the first of these engine options that the engine has."""
        options = self._pool.engine.options
        name = next((one for one in names if isinstance(options.get(one), int)), None)
        if name is None:
            return None
        words, value = f"{words}{self._of} ({name} {2 * options[name]})", 2 * options[name]
        written = self._deployment.loaded.document.data["pools"][self._index].get("engine")
        if isinstance(written, str):
            return Remedy(words, {f"{self._path}.engine": {"preset": written, name: value}})
        return Remedy(words, {f"{self._path}.engine.{name}": value})


_Way = Callable[[_Pool], Remedy | None]
_WAYS: dict[str, tuple[_Way, ...]] = {
    "KV capacity": (_Pool.fp8_kv, _Pool.fp8_weights, _Pool.ratio, _Pool.replica, _Pool.wider),
    "scheduler slots": (_Pool.slots, _Pool.ratio, _Pool.replica),
    "token budget": (_Pool.budget, _Pool.ratio, _Pool.replica),
    "KV transfer": (_Pool.layer_by_layer, _Pool.ratio, _Pool.replica),
    "compute": (_Pool.fp8_weights, _Pool.ratio, _Pool.replica, _Pool.wider),
    "HBM bandwidth": (_Pool.fp8_kv, _Pool.fp8_weights, _Pool.ratio, _Pool.replica, _Pool.wider),
    COMMUNICATES: (_Pool.narrower, _Pool.ratio, _Pool.replica),
    LAUNCHES: (_Pool.ratio, _Pool.replica),
    NOTHING: (_Pool.fp8_weights, _Pool.wider),
}
"""By what limits a pool or keeps requests out, what needs no GPUs first.

Where nothing does, steps are too long for the SLO. What is not here asks for a replica."""
_ELSE: tuple[_Way, ...] = (_Pool.ratio, _Pool.replica)


def remedies(deployment: Deployment, summary: Summary) -> list[Remedy]:
    """Return what may help, the most likely first: of the pool in which requests waited longest, at first."""
    indices = {pool.spec.name: index for index, pool in enumerate(deployment.pools)}
    found: dict[str, Remedy] = {}
    for limit in sorted(summary.limits, key=lambda one: -one.waited):
        if limit.pool in indices:
            for remedy in _of(limit, _Pool(deployment, indices[limit.pool])):
                found.setdefault(remedy.words, remedy)
    return list(found.values())


def _of(limit: Limit, pool: _Pool) -> list[Remedy]:
    """Return what may help one pool: against its limit, then against what keeps requests out besides."""
    decode = pool.decoding_side()
    if limit.resource == "decode admission" and decode is not None:
        pool, resources = decode, ["KV capacity"]
    else:
        kept_out = limit.admission in _WAYS and limit.resource != NOTHING
        resources = [limit.resource, *([limit.admission] if kept_out else [])]
    ways = dict.fromkeys(way for resource in resources for way in _WAYS.get(resource, _ELSE))
    free = (_Pool.fp8_kv, _Pool.fp8_weights, _Pool.slots, _Pool.budget)
    ordered = sorted(ways, key=lambda way: way not in free)
    return [remedy for remedy in (way(pool) for way in ordered) if remedy is not None]


HELPS = 0.05
"""Gain in goodput (or throughput) below which a change is not given [our choice]."""
MOST_CHANGES = 3
MOST_REQUESTS = 1000
"""Requests of each short run."""
PER_CHANGE = 1000
"""Requests of the run for each change that is tried: building it and its short run cost no more."""
PER_CLIENT = 5
"""Requests per client of a closed loop below which a short run is mostly its beginning [our choice]."""


def advise(deployment: Deployment, summary: Summary, progress: RunProgress | None = None) -> list[Advice]:
    """Return the changes that help, those that need no more GPUs first, then the largest gain."""
    found = remedies(deployment, summary) if _wanted(summary) else []
    requests = len(deployment.trace)
    changes = min(MOST_CHANGES, len(found), requests // PER_CHANGE)
    if changes < 1:
        return []
    short = min(MOST_REQUESTS, requests // (changes + 2))
    loop = deployment.loaded.scenario.workload.closed_loop
    if loop is not None and short < PER_CLIENT * loop.clients:
        return []
    trials = _Trials(deployment, short, progress)
    before = trials.run("as it is", {})
    checked: list[Advice] = []
    for remedy in found:
        if trials.done > changes:
            break
        try:
            after = trials.run(remedy.words, remedy.settings)
        except UserError:  # it does not fit, or the engine refuses it
            continue
        checked.append(_advice(remedy, before, after, short))
    own = sum(use.gpus for use in summary.pools)
    helpful = [one for one in checked if one.effect >= HELPS]
    return sorted(helpful, key=lambda one: (one.gpus > own, -one.effect))


def _wanted(summary: Summary) -> bool:
    """Return whether the run leaves anything to wish for."""
    if summary.slo_verdict is not None:
        return summary.slo_verdict.outcome != MET
    return not _carried(summary)


class _Trials:
    """Short runs of a deployment with some values changed."""

    def __init__(self, deployment: Deployment, requests: int, progress: RunProgress | None) -> None:
        self._it = changed(deployment.loaded, {"workload.limit": requests, "replications": 1})
        self._trace = build_trace(self._it)
        self._parts = Parts()
        self._progress = progress
        self.done = 0

    def run(self, words: str, settings: dict[str, Any]) -> Summary:
        """Simulate one; raises `UserError` if it cannot be built."""
        deployment = build(changed(self._it, settings), self._trace, self._parts)
        if self._progress:
            self._progress.begin(f"checking {words}")
        self.done += 1
        return deployment.summarize(deployment.simulate(self._progress))


def _advice(remedy: Remedy, before: Summary, after: Summary, requests: int) -> Advice:
    measure = GOODPUT if _carried(before) and before.rates.goodput_requests_per_s is not None else THROUGHPUT
    old, new = (_rate(one, measure) for one in (before, after))
    gpus = [sum(use.gpus for use in one.pools) for one in (before, after)]
    return Advice(
        remedy.words + (f", {gpus[1]} GPUs instead of {gpus[0]}" if gpus[1] != gpus[0] else ""),
        [f"{path}={_yaml(value)}" for path, value in remedy.settings.items()],
        measure,
        old,
        new,
        new / old - 1.0 if old else 0.0,
        gpus[1],
        requests,
        carries=_carried(after) and not _carried(before),
    )


def _carried(summary: Summary) -> bool:
    """Return whether the load was carried: if not, how many were good depends on how long the run was."""
    return summary.stability.verdict in (STABLE, NOT_JUDGED)


def _rate(summary: Summary, measure: str) -> float:
    """Return good requests per second of the steady window, or all per second of the whole run.

    Throughput is compared where a queue grows: then the server is full from its first minute to its last, and
    what completes inside a window depends on how long its requests take.
    """
    if measure == GOODPUT:
        return summary.rates.goodput_requests_per_s or 0.0
    return summary.whole.requests_per_s or 0.0


def _yaml(value: Any) -> str:
    """Return a value as `--set` reads it."""
    return value if isinstance(value, str) else json.dumps(value)
