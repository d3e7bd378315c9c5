"""Everything that is wrong with a scenario at once: keys, names, files and settings in one round.

Once something is refused, what it hides is looked for: values that are wrong are replaced by ones that are
not, and the rest is tried. What depends on a replaced value (whether a model fits ...) is left for later.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simserve.deploy.build import Parts
from simserve.deploy.engine import resolve_engine
from simserve.deploy.pool import build_pool
from simserve.deploy.router import check_router
from simserve.deploy.split import check_roles
from simserve.deploy.workload import build_trace
from simserve.engines.presets import DEFAULT_ENGINE, PRESETS, engine_called
from simserve.errors import UserError, together
from simserve.hardware import gpu_called, load_gpu
from simserve.scenario.document import Document, KeyPath
from simserve.scenario.explain import path_of_problem
from simserve.scenario.load import LoadedScenario, find, validated, with_our_names
from simserve.scenario.part import EngineSpec
from simserve.scenario.spec import Scenario
from simserve.scenario.variants import variant_documents

GPU, ENGINE = "h100_sxm", DEFAULT_ENGINE
STAND_INS: dict[str, Any] = {
    "name": "x",
    "model": "llama-3.1-8b",
    "engine": ENGINE,
    "workload": {
        "synthetic": {
            "requests": 1,
            "arrivals": {"kind": "constant", "rate_per_s": 1.0},
            "prompt_tokens": {"kind": "constant", "value": 1.0},
            "output_tokens": {"kind": "constant", "value": 1.0},
        }
    },
    "pools": [{"gpu": GPU}],
}
"""Values of the keys that a scenario must have, for one whose own are wrong."""
_ROUNDS = 4
_LONGEST = 8192


class _Wrong:
    """Errors of steps that do not depend on one another."""

    def __init__(self, first: UserError) -> None:
        self.found, self.failed = [first], 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Keep a user's mistake raised inside, and go on."""
        try:
            yield
        except UserError as error:
            self.failed += 1
            self.found.append(error)

    def error(self) -> UserError:
        """Return all of them as one; the first as it is, if it is the only one."""
        return together(self.found)


def of_document(document: Document, folder: Path, first: UserError) -> UserError:
    """Return the error about everything wrong with a file whose validation raised `first`."""
    wrong = _Wrong(first)
    mended = _look(document, folder, wrong)
    for variant in variant_documents(mended).values():
        with wrong.step():
            validated(variant)
        _look(variant, folder, wrong)
    return wrong.error()


def _look(document: Document, folder: Path, wrong: _Wrong) -> Document:
    """Try the parts of a document, less the values that its schema refuses; return what was tried."""
    mended, scenario = _mended(document)
    if scenario is None:
        return mended
    it = LoadedScenario(scenario, mended, folder)
    scenario = _with_known_names(it, wrong)
    with wrong.step():
        it = LoadedScenario(with_our_names(scenario, folder, it.blame), mended, folder)
        _try_parts(it, wrong, fits=False)
    return mended


def of_build(it: LoadedScenario, first: UserError) -> UserError:
    """Return the error about everything wrong with a scenario and its variants; building raised `first`."""
    wrong = _Wrong(first)
    for one in (it, *it.variants.values()):
        _try_parts(one, wrong, fits=True)
    return wrong.error()


def _try_parts(it: LoadedScenario, wrong: _Wrong, fits: bool) -> None:
    """Try router, workload, model and engines; `fits`: also whether the pools fit the model."""
    with wrong.step():
        check_router(it)
    with wrong.step():
        check_roles(it)
    with wrong.step():
        build_trace(it)
    found = None
    with wrong.step():
        found = Parts().of(it)
    for index, pool in enumerate(it.scenario.pools):
        before = wrong.failed
        with wrong.step():
            with it.blame("pools", index, "gpu"):
                gpu = load_gpu(pool.gpu, () if found is None else found[1].folders)
            resolve_engine(it, index, gpu.hbm_bytes, pool.max_model_len or _LONGEST)
        if found is not None and fits:
            with wrong.step():
                build_pool(it if wrong.failed == before else _with_defaults(it), index, *found)


def _with_defaults(it: LoadedScenario) -> LoadedScenario:
    """Return the scenario with every engine's defaults."""

    def bare(engine: EngineSpec) -> EngineSpec:
        return engine.model_copy(update={"options": {}})

    scenario = it.scenario
    pools = tuple(pool.model_copy(update={"engine": bare(pool.engine)}) for pool in scenario.pools)
    return replace(it, scenario=scenario.model_copy(update={"engine": bare(scenario.engine), "pools": pools}))


def _mended(document: Document) -> tuple[Document, Scenario | None]:
    """Return the document without the values that its schema refuses; no scenario if that is not enough."""
    mended = Document(
        document.source, deepcopy(document.data), dict(document.places), document.variant, document.written
    )
    for _ in range(_ROUNDS):
        try:
            return mended, Scenario.model_validate(mended.data)
        except ValidationError as error:
            paths = {path_of_problem(mended, problem) for problem in error.errors(include_url=False)}
            for path in paths:
                if not any(other[: len(path)] == path != other for other in paths):
                    _mend(mended.data, path)
    return mended, None


def _mend(data: dict[str, Any], path: KeyPath) -> None:
    """Take away the value at `path`, or what needs it; put a stand-in where a value must be."""
    if not path:
        return
    key = str(path[0])
    if key == "pools" and len(path) > 1 and isinstance(data.get(key), list):
        pools = data[key]
        pool = pools[path[1]] if isinstance(path[1], int) and path[1] < len(pools) else None
        if isinstance(pool, dict) and len(path) > 2:
            pool.pop(path[2], None)
            pool.setdefault("gpu", GPU)
            return
    if key == "workload" and len(path) == 2 and isinstance(data.get(key), dict) and path[1] in data[key]:
        del data[key][path[1]]
        return
    data.pop(key, None)
    if key in STAND_INS:
        data[key] = deepcopy(STAND_INS[key])


def _with_known_names(it: LoadedScenario, wrong: _Wrong) -> Scenario:
    """Return the scenario with a GPU and an engine that are known in place of each that is not."""
    folders = [found for name in it.scenario.profiles if (found := find(name, it.folder))]
    pools = []
    for index, pool in enumerate(it.scenario.pools):
        changes: dict[str, Any] = {"gpu": GPU, "engine": _near(pool.engine)}
        with wrong.step(), it.blame("pools", index, "gpu"):
            changes["gpu"] = gpu_called(pool.gpu, folders)
        with wrong.step(), it.blame("pools", index, "engine", "preset"):
            changes["engine"] = _known(pool.engine)
        pools.append(pool.model_copy(update=changes))
    engine = _near(it.scenario.engine)
    with wrong.step(), it.blame("engine", "preset"):
        engine = _known(it.scenario.engine)
    return it.scenario.model_copy(update={"pools": tuple(pools), "engine": engine})


def _known(engine: EngineSpec) -> EngineSpec:
    """Return the engine, whose name must be known."""
    return (
        engine
        if engine.preset is None
        else engine.model_copy(update={"preset": engine_called(engine.preset)})
    )


def _near(engine: EngineSpec) -> EngineSpec:
    """Return the engine whose name is nearest, with the settings; any engine without them if none is near."""
    close = difflib.get_close_matches(str(engine.preset), PRESETS, n=1, cutoff=0.7)
    return (
        engine.model_copy(update={"preset": close[0]})
        if close
        else EngineSpec.model_validate({} if engine.preset is None else ENGINE)
    )
