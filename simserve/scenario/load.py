"""From a scenario file and `--set` options to a validated, frozen scenario."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simserve.engines.presets import engine_called
from simserve.errors import ScenarioError, UserError, nearest, together
from simserve.hardware import gpu_called
from simserve.paths import data_dir
from simserve.scenario.document import (
    Document,
    KeyPath,
    override,
    parse_document,
    path_of,
    put,
    read_document,
)
from simserve.scenario.explain import explain, placed
from simserve.scenario.part import EngineSpec
from simserve.scenario.pool_spec import PoolSpec
from simserve.scenario.spec import STUDIES, Scenario
from simserve.scenario.variants import OF_THE_COMPARISON, variant_documents, with_ratios

# Where the files that a scenario names lie, and how outputs name them without machine paths.
#
# A relative name is looked up beside the scenario file, then in the current folder, then in the data that
# ships with simserve. Outputs keep names that can be looked up again in the same way.

SHIPPED = ("traces", "scenarios", "kernels_profile")


def find(name: str, folder: Path) -> Path | None:
    """Return the file or folder called `name` in a scenario that lies in `folder`, or None."""
    if not name:
        return None
    if Path(name).is_absolute():
        return Path(name) if Path(name).exists() else None
    candidates = [folder / name, Path(name), shipped(name)]
    return next((path for path in candidates if path is not None and path.exists()), None)


def shipped(name: str) -> Path | None:
    """Return where the data that ships holds `traces/x`, `scenarios/x` or `kernels_profile/x`."""
    parts = Path(name).parts
    return data_dir(parts[0]).joinpath(*parts[1:]) if len(parts) > 1 and parts[0] in SHIPPED else None


def around(folder: Path) -> Iterator[str]:
    """Yield names that a scenario in `folder` can give to `find`: files beside it, and shipped traces."""
    yield from (path.name for path in folder.iterdir() if path.is_file())
    yield from (f"traces/{path.name}" for path in data_dir("traces").glob("*.gz"))


def portable(name: str, folder: Path) -> str:
    """Return `name` so that `find` finds the same file from the current folder, whatever folder asks.

    Absolute names stay (the user wrote them), shipped data keeps its name, anything else is relative to the
    current folder.
    """
    path = find(name, folder)
    if path is None or Path(name).is_absolute() or path == shipped(name):
        return name
    return Path(os.path.relpath(path)).as_posix()


# The names of a scenario's GPUs and engines, whatever people call them, as this project calls them.
#
# Done once, when a scenario is validated, so that everything after it compares one name per thing. The model
# keeps the name that it was given: a quantised release says more than its preset does.

Blame = Callable[..., AbstractContextManager[None]]
"""Puts the place of a path before the message of a mistake raised inside."""


def with_our_names(scenario: Scenario, folder: Path, blame: Blame) -> Scenario:
    """Return the scenario with the names of this project; raises `ScenarioError` for one that is unclear."""
    profiles = [found for name in scenario.profiles if (found := find(name, folder))]

    def gpu(name: str, *path: str | int) -> str:
        with blame(*path):
            return gpu_called(name, profiles)

    def prices(named: dict[str, Any], *path: str) -> dict[str, Any]:
        ours: dict[str, Any] = {}
        for name, price in named.items():
            one = gpu(name, *path, name)
            with blame(*path, name):
                if one in ours:
                    raise ScenarioError(f"{name!r} is {one}, which has a price already")
            ours[one] = price
        return ours

    changes: dict[str, Any] = {}
    with blame("engine", "preset"):
        changes["engine"] = _engine(scenario.engine)
    changes["pools"] = tuple(_pool(pool, i, gpu, blame) for i, pool in enumerate(scenario.pools))
    for study, key in (("size", "catalogue"), ("sweep", "prices"), ("search", "prices")):
        if (asked := getattr(scenario, study)) is not None:
            changes[study] = asked.model_copy(update={key: prices(getattr(asked, key), study, key)})
    return scenario.model_copy(update=changes)


def _pool(pool: PoolSpec, index: int, gpu: Callable[..., str], blame: Blame) -> PoolSpec:
    changes: dict[str, Any] = {"gpu": gpu(pool.gpu, "pools", index, "gpu")}
    if pool.afd is not None and pool.afd.gpu is not None:
        named = gpu(pool.afd.gpu, "pools", index, "afd", "gpu")
        changes["afd"] = pool.afd.model_copy(update={"gpu": named})
    with blame("pools", index, "engine", "preset"):
        changes["engine"] = _engine(pool.engine)
    return pool.model_copy(update=changes)


def _engine(engine: EngineSpec) -> EngineSpec:
    if engine.preset is None:
        return engine
    return engine.model_copy(update={"preset": engine_called(engine.preset)})


@dataclass(frozen=True)
class LoadedScenario:
    """A scenario, where its values stand, and the folder that its relative names start from."""

    scenario: Scenario
    document: Document
    folder: Path
    variants: dict[str, LoadedScenario] = field(default_factory=dict)
    """What `compare` asks for, by name, in the order of the file."""

    @contextmanager
    def blame(self, *path: str | int) -> Iterator[None]:
        """Give a user's mistake raised inside the place of the value at `path`, or of the key in it."""
        try:
            yield
        except UserError as error:
            if all(one.place for one in error.problems):
                raise  # raised where the place was known
            raise together(placed(one, self.document, path) for one in error.problems) from error

    def file(self, name: str, path: KeyPath) -> Path:
        """Return the file that the value `name` at `path` names; raises `ScenarioError` if there is none."""
        found = find(name, self.folder)
        if found is None:
            raise ScenarioError(
                f"no file {name!r} beside the scenario, in the current folder, or in the data that ships "
                f"with simserve{nearest(name, around(self.folder))}",
                place=self.document.where(path),
            )
        return found


def load_scenario(name: str | Path, options: Sequence[str] = ()) -> LoadedScenario:
    """Read and validate the scenario file `name` (or a shipped `scenarios/x.yaml`) with `--set` options.

    Raises `ScenarioError` with one line per problem: of keys, names, files and settings alike.
    """
    path = find(str(name), Path())
    if path is None:
        ships = [f"scenarios/{file.name}" for file in sorted(data_dir("scenarios").glob("*.yaml"))]
        raise ScenarioError(
            f"{name}: no such scenario file{nearest(str(name), ships)}; those that ship: {', '.join(ships)}"
        )
    document = read_document(path, str(name))
    for option in options:
        override(document, option)
    return _whole(document, path.parent)


def loaded(scenario: Scenario, folder: Path | None = None) -> LoadedScenario:
    """Wrap a scenario that was made in Python; its messages have no line numbers."""
    return _validated(Document("scenario", mapping_of(scenario)), folder or Path())


def loaded_mapping(plain: Mapping[str, Any], options: Sequence[str] = ()) -> LoadedScenario:
    """Validate what a scenario file would hold, as plain data, with `--set` options."""
    document = Document("scenario", deepcopy(dict(plain)))
    for option in options:
        override(document, option)
    return _whole(document, Path())


def loaded_text(text: str, path: Path) -> LoadedScenario:
    """Validate the text of a scenario file that is to be written to `path`."""
    return _whole(parse_document(text, str(path)), path.parent)


def changed_whole(it: LoadedScenario, options: Sequence[str]) -> LoadedScenario:
    """Return a scenario with its variants and studies, and with `--set` options."""
    document = Document(it.document.source, deepcopy(it.document.data), dict(it.document.places))
    for option in options:
        override(document, option)
    return _whole(document, it.folder)


def mapping_of(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as plain data, variants and studies too."""
    studies = {
        key: getattr(scenario, key).model_dump(mode="json", by_alias=True, exclude_none=True)
        for key in STUDIES
        if getattr(scenario, key) is not None
    }
    return scenario.as_mapping() | studies


def _whole(document: Document, folder: Path) -> LoadedScenario:
    """Validate a document; raises `ScenarioError` with everything that is wrong with it."""
    try:
        return _validated(document, folder)
    except UserError as error:
        from simserve.deploy.problems import of_document

        raise of_document(document, folder, error) from error


def validated(document: Document) -> Scenario:
    """Return what a document says; raises `ScenarioError` with a line per key that is wrong."""
    try:
        return Scenario.model_validate(document.data)
    except ValidationError as error:
        raise explain(error, document, Scenario) from error


def _validated(document: Document, folder: Path) -> LoadedScenario:
    """Validate a document and the variants in it."""
    scenario = validated(document)
    scenario = with_our_names(scenario, folder, LoadedScenario(scenario, document, folder).blame)
    if scenario.ratio is not None:
        return _validated(with_ratios(document, scenario), folder)
    variants = {name: _validated(one, folder) for name, one in variant_documents(document).items()}
    return LoadedScenario(scenario, document, folder, variants)


def changed(it: LoadedScenario, changes: Mapping[str, Any]) -> LoadedScenario:
    """Return a scenario without variants and studies, with the values of `changes` by path (`pools.0.tp`).

    None takes a key away. Raises `ScenarioError` as `--set` does; the messages name the paths.
    """
    data = deepcopy({key: value for key, value in it.document.data.items() if key not in OF_THE_COMPARISON})
    document = Document(it.document.source, data, dict(it.document.places))
    for path, value in changes.items():
        shown = path if isinstance(value, list | dict) else f"{path} = {value}"
        put(document, path_of(path), deepcopy(value), f"{it.document.source}: {shown}")
    return _validated(document, it.folder)
