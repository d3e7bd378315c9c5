"""What halves of a prefill/decode split cannot do together, or not without each other."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.errors import ScenarioError
from simserve.policy.split import SplitEngine
from simserve.scenario.halves import split_engine
from simserve.scenario.load import LoadedScenario
from simserve.scenario.pool import BuiltPool
from simserve.scenario.router import router_of
from simserve.scenario.split import ROLES, is_split, leaves_late, on_failure_of, transfer_of
from simserve.scenario.split_spec import TransferSpec

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
                raise ScenarioError(f"role = {role}, but no pool has the role {other}: a split needs both")
    if not is_split(it):
        for name in ("transfer", "decode_router", "role_switch"):
            if getattr(it.scenario, name) is not None:
                with it.blame(name):
                    raise ScenarioError(f"{name} means nothing without prefill and decode pools")


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
                    f"kv_dtype = {pool.spec.kv_dtype}, but pool {first.spec.name} keeps "
                    f"{first.spec.kv_dtype}: KV moves as it is"
                )
            if pool.spec.role == "decode" and pool.spec.pp > 1:
                raise ScenarioError(f"pp = {pool.spec.pp}, allowed is 1: decode pools have no pipeline yet")
            if pool.spec.role == "decode" and pool.spec.kv_tiers:
                raise ScenarioError("kv_tiers are not simulated on decode pools yet")
            if pool.spec.role == "prefill":
                _check_early(transfer_of(it), pool)
    _check_rules(it, split_engine(first.engine))
    if it.scenario.role_switch is not None:
        _check_switch(it, pools)


def _check_early(transfer: TransferSpec, pool: BuiltPool) -> None:
    """Refuse KV that leaves early from stages or ranks that step together."""
    if leaves_late(pool.spec) and transfer.overlap not in (None, "request"):
        raise ScenarioError(
            f"pp = {pool.spec.pp}, dp = {pool.spec.dp} and transfer.overlap: {transfer.overlap}, allowed: "
            "request (stages or ranks step together)"
        )


def _check_switch(it: LoadedScenario, pools: Sequence[BuiltPool]) -> None:
    halves = split_engine(pools[0].engine)
    with it.blame("role_switch"):
        if halves.prefill is not halves.decode:
            raise ScenarioError(f"{pools[0].engine.label}: replicas of this engine cannot change sides")
        if any(pool.spec.speculation is not None for pool in pools):
            raise ScenarioError("replicas that speculate cannot change sides")
        if any(pool.spec.pp > 1 or pool.spec.dp > 1 for pool in pools):
            raise ScenarioError("replicas with pipeline stages or attention ranks cannot change sides")
    for key, role in (("router", "prefill"), ("decode_router", "decode")):
        kind = router_of(it, role).kind
        if kind not in FORGETFUL:
            with it.blame(key if getattr(it.scenario, key) else "router"):
                raise ScenarioError(
                    f"kind = {kind} remembers its replicas, which change with role_switch; allowed: "
                    + ", ".join(FORGETFUL)
                )


def _check_rules(it: LoadedScenario, halves: SplitEngine) -> None:
    transfer, roles = transfer_of(it), [pool.role for pool in it.scenario.pools]
    with it.blame("transfer"):
        if transfer.local is None and "mixed" in roles:
            raise ScenarioError("a mixed pool beside a split gets what transfer.local keeps; say which")
        if transfer.local is not None and "mixed" not in roles and not halves.computes_prompts:
            raise ScenarioError("local = ...: SGLang's decode replicas compute no prompts; add a mixed pool")
        if on_failure_of(transfer, halves) == "recompute" and not halves.computes_prompts:
            raise ScenarioError("on_failure = recompute: SGLang's decode replicas compute no prompts")
