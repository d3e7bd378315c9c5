"""The router of a scenario, with its settings validated and with what it may know of prompts and sessions."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from simserve.core import Trace
from simserve.deploy.engine import component
from simserve.errors import ScenarioError
from simserve.router.base import ROUTERS, Known, Router, RouterParams
from simserve.scenario.explain import explain
from simserve.scenario.load import LoadedScenario
from simserve.scenario.part import RouterSpec

LEAST_BLOCK_TOKENS = 16
"""Routers look at prompts in blocks of the engine's size, but of no less: vLLM's block, and fine enough.

Where the trace's own blocks are larger they are taken: it says nothing of what is smaller.
"""


def check_router(it: LoadedScenario) -> None:
    """Raise `ScenarioError` if there is no such router or its settings are wrong."""
    _router_and_params(it, it.scenario.router, "router")
    if it.scenario.decode_router is not None:
        _router_and_params(it, it.scenario.decode_router, "decode_router")
        if it.scenario.decode_router.options.get("router_queue_threshold") is not None:
            with it.blame("decode_router"):
                raise ScenarioError(
                    "has no meaning here, for decode replicas compute no prompts; leave it out",
                    "router_queue_threshold",
                )


def build_router(it: LoadedScenario, trace: Trace, engine_block_size: int, role: str = "mixed") -> Router:
    """Return a fresh router, which knows what the trace says of prompts and sessions.

    `role` is that of the replicas among which it chooses.
    """
    spec = router_of(it, role)
    key = "router" if role != "decode" or it.scenario.decode_router is None else "decode_router"
    router, params = _router_and_params(it, spec, key)
    return router.made(params, it.scenario.seed, known_of(trace, engine_block_size))


def router_of(it: LoadedScenario, role: str) -> RouterSpec:
    """Return the router of replicas with that role.

    Decode replicas behind Dynamo's router: no credit for what they have cached, prompts do not count as load,
    and nobody waits in the router's queue.
    """
    router = it.scenario.router
    if role != "decode":
        return router
    own: dict[str, Any] = {"router_queue_threshold": None}
    if it.scenario.decode_router is not None:
        router = it.scenario.decode_router
    else:
        own |= {"overlap_score_credit": 0.0, "prefill_load_scale": 0.0}
    return RouterSpec.model_validate({**router.as_mapping(), **own}) if router.kind == "dynamo_kv" else router


def known_of(trace: Trace, engine_block_size: int) -> Known:
    """Return what routers may know of the trace's requests beforehand."""
    return Known(trace, max(engine_block_size, trace.block_tokens, LEAST_BLOCK_TOKENS))


def router_assumptions(it: LoadedScenario, trace: Trace, engine_block_size: int) -> tuple[str, ...]:
    """Return what a report must say of the router, such as that it cannot know what prompts share."""
    kind = it.scenario.router.kind
    router = build_router(it, trace, engine_block_size)
    return tuple(f"router {kind}: {line}" for line in router.assumptions)


def _router_and_params(it: LoadedScenario, spec: RouterSpec, key: str) -> tuple[type[Router], RouterParams]:
    with it.blame(key):
        router = component(ROUTERS, spec.kind, ("Params", "choose"))
        if not issubclass(router, Router):
            raise ScenarioError(f"router {spec.kind!r} is no subclass of simserve.router.base.Router")
    try:
        return router, router.Params.model_validate(spec.options, strict=True)
    except ValidationError as error:
        raise explain(error, it.document, router.Params, (key,), also_allowed=["kind"]) from error
