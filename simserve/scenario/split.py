"""A scenario's prefill/decode split, built: which engine's halves, links of every pool, routers, rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from simserve.core import Trace
from simserve.engine import LocalRule, SplitSpec, SwitchRule
from simserve.errors import ScenarioError
from simserve.model.kv_transfer import kv_transfer_size, same_split
from simserve.policy.split import Overlap, SplitEngine
from simserve.scenario.balance import balance, balance_words
from simserve.scenario.halves import split_engine
from simserve.scenario.load import LoadedScenario
from simserve.scenario.moe import steps_together
from simserve.scenario.pool import BuiltPool
from simserve.scenario.pool_spec import PoolSpec
from simserve.scenario.router import build_router
from simserve.scenario.split_spec import (
    FEW_LINKS,
    MOST_CARDS,
    NVLINK_EFFICIENCY,
    PCIE_EFFICIENCY,
    RDMA_EFFICIENCY,
    RDMA_GB_PER_S,
    TransferSpec,
)
from simserve.units import GB, ms_to_ns, seconds_to_ns

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
    prefill = next(pool for pool in pools if pool.spec.role == "prefill")
    decode = next(pool for pool in pools if pool.spec.role == "decode")
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
    slo = it.scenario.slo
    closed = it.scenario.workload.closed_loop is not None
    found = None if closed else balance(trace, prefill, decode, slo.tpot_ms if slo else None)
    return (*lines, balance_words(found, prefill, decode)) if found else tuple(lines)


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
            raise ScenarioError(f"link = nvlink: {pool.gpu.title} has none; give gb_s, or another link")
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
