"""From the scenario's `workload` to a Trace: read or generate, window, spread, rate, limit, in that order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simserve.core import Trace
from simserve.deploy.combinations import features_of
from simserve.deploy.pool import BuiltPool
from simserve.engines.compatibility import Feature, check_engine, check_together
from simserve.errors import ScenarioError
from simserve.scenario.load import LoadedScenario, find
from simserve.scenario.workload_spec import WorkloadSpec
from simserve.units import NS_PER_S, seconds_to_ns
from simserve.workload import load_trace
from simserve.workload.catalogue import CATALOGUE
from simserve.workload.formats.base import READERS
from simserve.workload.synthetic.generate import synthesize
from simserve.workload.transform import (
    first_turns,
    scale_rate_by_compression,
    scale_rate_by_thinning,
    spread_quantised,
    take,
    window,
)

# Clients that give up: after how long, and whether the scenario's policies can drop a request.


def give_up_ns(it: LoadedScenario) -> int | None:
    """Return how long a client waits for the end of its answer; None: for ever."""
    seconds = it.scenario.workload.give_up_s
    return None if seconds is None else seconds_to_ns(seconds)


def check_give_up(it: LoadedScenario, pools: Sequence[BuiltPool]) -> None:
    """Refuse `workload.give_up_s` where it cannot be simulated; raises `ScenarioError`."""
    if it.scenario.workload.give_up_s is None:
        return
    with it.blame("workload"):
        for pool in pools:
            asked: dict[Feature, Any] = {"give_up_s": it.scenario.workload.give_up_s}
            check_together(features_of(pool.spec) | asked)
            check_engine(pool.engine.kind, pool.engine.label, asked)


PAUSES = 0x7417
"""Stream of the random numbers that users think by, apart from those of the workload."""


def build_trace(loaded: LoadedScenario) -> Trace:
    """Return the workload of a scenario; raises `ScenarioError` or `TraceError` with the place."""
    trace = _think(loaded, _limit_outputs(loaded, _transformed(loaded, _source(loaded))))
    if not len(trace):
        raise ScenarioError("no request is left to simulate", place=loaded.document.where(("workload",)))
    return trace


def depends_on_seed(workload: WorkloadSpec) -> bool:
    """Return True if another seed gives another trace."""
    thinned = workload.scale_by == "thin" and workload.rate_scale != 1
    thinking = workload.closed_loop is not None and workload.closed_loop.think_s is not None
    drawn = workload.synthetic is not None or workload.rate is not None
    return drawn or workload.quantised == "spread" or thinned or thinking


def _source(loaded: LoadedScenario) -> Trace:
    workload = loaded.scenario.workload
    if workload.synthetic is not None:
        with loaded.blame("workload", "synthetic"):
            return synthesize(workload.synthetic, loaded.scenario.seed)
    if workload.format is not None:
        with loaded.blame("workload", "format"):
            READERS.get(workload.format)
    path = _trace_path(loaded, str(workload.trace))
    with loaded.blame("workload", "trace"):
        return load_trace(
            path,
            workload.format or "auto",
            closed_loop=workload.closed_loop is not None,
            **_reader_options(loaded),
        )


def _reader_options(loaded: LoadedScenario) -> dict[str, Any]:
    """Return the options of the trace's format: its own, and those that are keys of the workload."""
    workload = loaded.scenario.workload
    options = dict(workload.trace_options)
    if workload.rate is not None:
        options |= {"rate": workload.rate, "seed": loaded.scenario.seed}
    for key in ("columns", "tokens_per_word"):
        if getattr(workload, key) is not None:
            options[key] = getattr(workload, key)
    if workload.tokenizer is not None:
        found = find(workload.tokenizer, loaded.folder)
        options["tokenizer"] = workload.tokenizer if found is None else str(found)
    return options


def _trace_path(loaded: LoadedScenario, name: str) -> Path:
    try:
        return loaded.file(name, ("workload", "trace"))
    except ScenarioError as error:
        public = [key for key, trace in CATALOGUE.items() if trace.file_name == Path(name).name]
        if not public:
            raise
        raise ScenarioError(f"{error}; `simserve trace fetch {public[0]}` brings it") from error


def _transformed(loaded: LoadedScenario, trace: Trace) -> Trace:
    workload, seed = loaded.scenario.workload, loaded.scenario.seed
    if workload.window_s is not None:
        with loaded.blame("workload", "window_s"):
            trace = window(trace, *workload.window_s)
    if workload.quantised == "spread":
        with loaded.blame("workload", "quantised"):
            trace = spread_quantised(trace, seed)
    if workload.rate_scale != 1:
        with loaded.blame("workload", "rate_scale"):
            if workload.scale_by == "compress":
                trace = scale_rate_by_compression(trace, workload.rate_scale)
            else:
                trace = scale_rate_by_thinning(trace, workload.rate_scale, seed)
    if workload.limit is not None:
        trace = take(trace, workload.limit)
    return trace


def _limit_outputs(loaded: LoadedScenario, trace: Trace) -> Trace:
    """Declare the clients' output limit (the trace's own column stays unless the scenario says otherwise)."""
    wanted = loaded.scenario.workload.max_tokens
    if wanted is None:
        return trace
    if wanted == "exact":
        return replace(trace, max_tokens=trace.output_tokens.copy())
    return replace(trace, max_tokens=np.full(len(trace), wanted, dtype=np.int64))


def _think(loaded: LoadedScenario, trace: Trace) -> Trace:
    """Give users their pauses before each request (of a session: before its first turn).

    Pauses belong to rows, so that a request has the same pause whatever else is simulated.
    """
    loop = loaded.scenario.workload.closed_loop
    if loop is None or loop.think_s is None:
        return trace
    with loaded.blame("workload", "closed_loop", "think_s"):
        rng = np.random.default_rng((loaded.scenario.seed, PAUSES))
        think_s = loop.think_s.draw(rng, len(trace), floor=0)
    between_turns = 0 if trace.think_ns is None else trace.think_ns
    think_ns = np.rint(think_s * NS_PER_S).astype(np.int64)
    return replace(trace, think_ns=np.where(first_turns(trace.session, len(trace)), think_ns, between_turns))
