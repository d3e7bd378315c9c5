"""A scenario's prefill/decode split, built: which engine's halves, links of every pool, routers, rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simserve.core import Trace
from simserve.deploy.combinations import features_of
from simserve.deploy.kv_tiers import recompute_time
from simserve.deploy.moe import steps_together
from simserve.deploy.pool import BuiltPool
from simserve.deploy.pool_plan import split_engine
from simserve.deploy.router import build_router, router_of
from simserve.engines.base import Overlap, SplitEngine
from simserve.engines.compatibility import check_engine, check_together
from simserve.errors import ScenarioError
from simserve.latency import TableLatency
from simserve.model.kv import kv_transfer_size, same_split
from simserve.scenario.load import LoadedScenario
from simserve.scenario.pool_spec import PoolSpec
from simserve.scenario.split_spec import (
    FEW_LINKS,
    MOST_CARDS,
    NVLINK_EFFICIENCY,
    PCIE_EFFICIENCY,
    RDMA_EFFICIENCY,
    RDMA_GB_PER_S,
    TransferSpec,
)
from simserve.scenario.variants import name_of, splits_of
from simserve.sim import LocalRule, SplitSpec, SwitchRule
from simserve.units import GB, NS_PER_MS, NS_PER_S, ms_to_ns, seconds_to_ns

# The balance formula: how many prefill and decode replicas are equally busy, as a first guess of the ratio.
#
# Prefill replicas are busy for rate x (time of a mean prompt) / x of the time, decode replicas for rate x
# (mean
# answer) x (time of a step) / (y x batch), the batch being the largest whose step keeps the limit on the time
# per token and whose KV fits. Domain page, section 6. Queueing, bursts and transfers are left out.

DEFAULT_TPOT_MS = 50.0
"""Limit on a decode step where the scenario names none [assumption]."""


@dataclass(frozen=True)
class Balance:
    """Replicas that are busy all the time, of each side."""

    prefill: float
    decode: float
    batch: int
    """Requests of one decode replica at once."""

    def busiest(self, split: tuple[int, int]) -> float:
        """Return the share of time in which the busier side of a split works (above 1: it falls behind)."""
        return max(self.prefill / split[0], self.decode / split[1])


def balance(trace: Trace, prefill: BuiltPool, decode: BuiltPool, tpot_ms: float | None) -> Balance | None:
    """Return how much each side has to do; None if the trace has no rate, or ranks step together."""
    if not isinstance(prefill.latency, TableLatency) or not isinstance(decode.latency, TableLatency):
        return None
    span_ns = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
    if len(trace) < 2 or not span_ns:
        return None
    rate = (len(trace) - 1) / (span_ns / NS_PER_S)
    prompt, answer = float(trace.prompt_tokens.mean()), float(trace.output_tokens.mean())
    whole = recompute_time(prefill.latency, prefill.engine.tokens_per_step(1 << 40))
    prompt_s = whole(max(1, round(prompt)), 0) / NS_PER_S
    batch, token_s = _batch(decode, decode.latency, prompt + answer / 2, tpot_ms or DEFAULT_TPOT_MS)
    return Balance(rate * prompt_s, rate * answer * token_s / batch, batch)


def _batch(decode: BuiltPool, latency: TableLatency, context: float, tpot_ms: float) -> tuple[int, float]:
    """Return the largest batch (a power of two) that is fast enough and fits, and its seconds per token.

    A step makes one token of each sequence, or with speculation so many as are accepted in the mean.
    """
    most = min(decode.engine.sequences, int(decode.ledger.kv_tokens / context))
    made = decode.speculation.acceptance.mean_tokens if decode.speculation is not None else 1.0
    batch, found = 1, (1, _step_s(latency, 1, context) / made)
    while batch <= most:
        token_s = _step_s(latency, batch, context) / made
        if token_s * NS_PER_S > tpot_ms * NS_PER_MS:
            break
        found = (batch, token_s)
        batch *= 2
    return found


def _step_s(latency: TableLatency, batch: int, context: float) -> float:
    return latency.quietly_step_ns(batch, round(batch * context), []) / NS_PER_S


def balance_words(found: Balance, prefill: BuiltPool, decode: BuiltPool) -> str:
    """Return what the formula says of a deployment, in a sentence."""
    sizes = (prefill.facts.gpus_per_replica, decode.facts.gpus_per_replica)
    own = (prefill.spec.replicas, decode.spec.replicas)
    total = own[0] * sizes[0] + own[1] * sizes[1]
    best = min(splits_of(total, *sizes) or [own], key=found.busiest)
    return (
        f"balance formula: {found.prefill:.2f} prefill and {found.decode:.2f} decode replicas would be busy "
        f"all the time ({found.batch} requests at once on each decode replica), so of {total} GPUs "
        f"{name_of(best)} is most even; queueing and bursts are left out"
    )


ROLES = ("prefill", "decode")


def is_split(it: LoadedScenario) -> bool:
    """Return True if the scenario's pools are split into prefill and decode."""
    return any(pool.role in ROLES for pool in it.scenario.pools)


def leaves_late(spec: PoolSpec) -> bool:
    """Return True for prefill pools whose KV leaves after the whole prompt whatever is asked for."""
    return spec.pp > 1 or steps_together(spec)


def split_assumptions(it: LoadedScenario, pools: Sequence[BuiltPool], trace: Trace) -> tuple[str, ...]:
    """Return what was taken for granted about a split, in words; nothing without one."""
    if not is_split(it):
        return ()
    transfer, halves = transfer_of(it), split_engine(pools[0].engine)
    split = build_split(it, pools, trace)
    lines = [
        f"split: {halves.source}; KV leaves by {split.overlap}, {split.handshake_ns / 1e6:g} ms of hand-shake"
        f"; the first token is sampled by the {halves.first_token} side",
        f"transfer over {transfer.link}: "
        + ", ".join(f"{name} {rate / 1e9:.4g} GB/s" for name, rate in split.link_bytes_per_s.items())
        + " for all links of a replica (of an attention rank with dp), each way, shared fairly at both ends; "
        "KV moves once, not once per rank",
    ]
    if split.overlap != "request":
        lines += [
            f"pool {pool.spec.name}: KV leaves after the whole prompt, as its stages or ranks step together"
            for pool in pools
            if pool.spec.role == "prefill" and leaves_late(pool.spec)
        ]
    if any(split.reshard_bytes_per_s.values()):
        rates = {f"{rate / 1e9:.4g}" for rate in split.reshard_bytes_per_s.values() if rate}
        lines.append(f"KV is cut or joined for ranks with other heads at {', '.join(sorted(rates))} GB/s")
    return tuple(lines)


def balance_of(it: LoadedScenario, pools: Sequence[BuiltPool], trace: Trace) -> str:
    """Return what the balance formula says of a split, in a sentence; "" where it says nothing."""
    if not is_split(it) or it.scenario.workload.closed_loop is not None:
        return ""
    prefill, decode = (next(pool for pool in pools if pool.spec.role == role) for role in ROLES)
    slo = it.scenario.slo
    found = balance(trace, prefill, decode, slo.tpot_ms if slo else None)
    return balance_words(found, prefill, decode) if found else ""


def transfer_of(it: LoadedScenario) -> TransferSpec:
    """Return what the scenario says of transfers, or the defaults."""
    return it.scenario.transfer or TransferSpec.model_validate({})


def build_split(it: LoadedScenario, pools: Sequence[BuiltPool], trace: Trace) -> SplitSpec:
    """Return the split with fresh routers."""
    transfer, halves = transfer_of(it), split_engine(pools[0].engine)
    local = transfer.local
    handshake_ms = halves.handshake_ms if transfer.handshake_ms is None else transfer.handshake_ms
    lease_s = transfer.lease_s or halves.lease_s
    by_role = {role: [pool for pool in pools if pool.spec.role == role] for role in (*ROLES, "mixed")}
    sides = [*by_role["prefill"], *by_role["decode"]]
    return SplitSpec(
        engine=halves,
        routers={
            role: build_router(it, trace, some[0].engine.block_size, role)
            for role, some in by_role.items()
            if some
        },
        size=kv_transfer_size(pools[0].model, pools[0].spec.kv_dtype),
        overlap=_overlap(it, halves),
        handshake_ns=ms_to_ns(handshake_ms),
        link_bytes_per_s={pool.spec.name: link_bytes_per_s(transfer, pool) for pool in pools},
        reshard_bytes_per_s={
            (one.spec.name, other.spec.name): reshard_bytes_per_s(transfer, one, other)
            for one in sides
            for other in sides
        },
        lease_ns=None if lease_s is None else seconds_to_ns(lease_s),
        failure_rate=transfer.failure_rate,
        on_failure=on_failure_of(transfer, halves),
        seed=it.scenario.seed,
        local=None if local is None else LocalRule(local.uncached_tokens, local.prefill_queue),
        switch=_switch_rule(it),
    )


def _switch_rule(it: LoadedScenario) -> SwitchRule | None:
    switch = it.scenario.role_switch
    if switch is None:
        return None
    return SwitchRule(
        check_ns=seconds_to_ns(switch.check_s),
        switch_ns=seconds_to_ns(switch.switch_s),
        queue=switch.queue,
        idle_queue=switch.idle_queue,
    )


def link_bytes_per_s(transfer: TransferSpec, pool: BuiltPool) -> int:
    """Return what all links of one replica achieve together, each way; attention ranks share them out."""
    gpus = pool.spec.tp * pool.spec.pp * pool.spec.dp
    rdma = transfer.link in RDMA_GB_PER_S
    links = transfer.links or (min(gpus, MOST_CARDS) if rdma else gpus)
    if rdma:
        line = RDMA_GB_PER_S[transfer.link] * GB
        efficiency = RDMA_EFFICIENCY["few" if links <= FEW_LINKS else "many"]
    elif transfer.link == "pcie":
        line, efficiency = pool.gpu.pcie_bytes_per_s, PCIE_EFFICIENCY
    else:
        line, efficiency = pool.gpu.nvlink_bytes_per_s, NVLINK_EFFICIENCY
        if not line and transfer.gb_s is None:
            raise ScenarioError(
                f"needs NVLink, which {pool.gpu.title} lacks; give gb_s, or another link", "link", "nvlink"
            )
    if transfer.gb_s is not None:
        line = transfer.gb_s * GB
    return max(1, round(links * line * (transfer.efficiency or efficiency) / pool.spec.dp))


def reshard_bytes_per_s(transfer: TransferSpec, one: BuiltPool, other: BuiltPool) -> int:
    """Return how fast KV is cut or joined between two pools; 0 if their ranks hold the same heads.

    Without a figure: the ranks of the smaller side read and write all of it once more in their memory
    [assumption].
    """
    if same_split(one.model, one.spec.tp, other.spec.tp):
        return 0
    if transfer.reshard_gb_s is not None:
        return round(transfer.reshard_gb_s * GB)
    smaller = min((one, other), key=lambda pool: pool.spec.tp * pool.gpu.hbm_bytes_per_s)
    return round(smaller.spec.tp * smaller.gpu.hbm_bytes_per_s / 2)


def _overlap(it: LoadedScenario, halves: SplitEngine) -> Overlap:
    return transfer_of(it).overlap or halves.overlap


def on_failure_of(transfer: TransferSpec, halves: SplitEngine) -> Literal["recompute", "error"]:
    """Return what a lost prompt means: as asked for, or as the engine has it."""
    return transfer.on_failure or ("recompute" if halves.computes_prompts else "error")


# What halves of a prefill/decode split cannot do together, or not without each other.

FORGETFUL = (
    "round_robin",
    "random",
    "least_outstanding_requests",
    "least_outstanding_tokens",
    "shortest_queue",
    "least_kv",
)
"""Routers that look at their replicas anew for each request, so that replicas may come and go."""


def check_roles(it: LoadedScenario) -> None:
    """Refuse one half of a split without the other, and what means nothing without a split."""
    roles = [pool.role for pool in it.scenario.pools]
    for role, other in (ROLES, ROLES[::-1]):
        if role in roles and other not in roles:
            with it.blame("pools", roles.index(role)):
                raise ScenarioError(f"needs its other side, but no pool has the role {other}", "role", role)
    if not is_split(it):
        for name in ("transfer", "decode_router", "role_switch"):
            if getattr(it.scenario, name) is not None:
                with it.blame(name):
                    raise ScenarioError("has no meaning without prefill and decode pools", name)


def check_split(it: LoadedScenario, pools: Sequence[BuiltPool]) -> None:
    """Refuse halves that cannot work together; raises `ScenarioError` with place and value."""
    first = pools[0]
    for index, pool in enumerate(pools):
        with it.blame("pools", index):
            halves = split_engine(pool.engine)
            if halves is not split_engine(first.engine):
                raise ScenarioError(f"{pool.engine.label} cannot take KV from {first.engine.label}")
            if pool.spec.kv_dtype != first.spec.kv_dtype:
                raise ScenarioError(
                    f"differs from pool {first.spec.name}, and KV moves as it is",
                    "kv_dtype",
                    pool.spec.kv_dtype,
                    first.spec.kv_dtype,
                )
            if pool.spec.role == "prefill":
                _check_early(transfer_of(it), pool)
    _check_rules(it, split_engine(first.engine))
    if it.scenario.role_switch is not None:
        _check_switch(it, pools)


def _check_early(transfer: TransferSpec, pool: BuiltPool) -> None:
    """Refuse KV that leaves early from stages or ranks that step together."""
    if leaves_late(pool.spec) and transfer.overlap not in (None, "request"):
        degree = "pp" if pool.spec.pp > 1 else "dp"
        raise ScenarioError(
            f"cannot be combined with transfer.overlap: {transfer.overlap}, for stages or ranks step "
            "together; use transfer.overlap: request",
            degree,
            getattr(pool.spec, degree),
        )


def _check_switch(it: LoadedScenario, pools: Sequence[BuiltPool]) -> None:
    with it.blame("role_switch"):
        for pool in pools:
            check_engine(pool.engine.kind, pool.engine.label, {"role_switch": None})
            check_together({**features_of(pool.spec), "role_switch": None})
    for key, role in (("router", "prefill"), ("decode_router", "decode")):
        kind = router_of(it, role).kind
        if kind not in FORGETFUL:
            with it.blame(key if getattr(it.scenario, key) else "router"):
                raise ScenarioError(
                    "remembers its replicas, which change with role_switch",
                    "kind",
                    kind,
                    ", ".join(FORGETFUL),
                )


def _check_rules(it: LoadedScenario, halves: SplitEngine) -> None:
    transfer, roles = transfer_of(it), [pool.role for pool in it.scenario.pools]
    with it.blame("transfer"):
        if transfer.local is None and "mixed" in roles:
            raise ScenarioError("a mixed pool beside a split gets what transfer.local keeps; say which")
        if transfer.local is not None and "mixed" not in roles and not halves.computes_prompts:
            raise ScenarioError(
                "needs a mixed pool with SGLang, whose decode replicas compute no prompts", "local"
            )
        if on_failure_of(transfer, halves) == "recompute" and not halves.computes_prompts:
            raise ScenarioError(
                "is not possible with SGLang, whose decode replicas compute no prompts",
                "on_failure",
                "recompute",
            )
