"""What may relieve each limit: the values to change, from a deployment and what limits its pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from simserve.metrics import Summary
from simserve.metrics.limits import COMMUNICATES, LAUNCHES, NOTHING, Limit
from simserve.scenario.build import Deployment
from simserve.scenario.pool import BuiltPool


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
