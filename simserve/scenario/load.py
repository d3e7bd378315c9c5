"""From a scenario file and `--set` options to a validated, frozen scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simserve.errors import ScenarioError, UserError, nearest
from simserve.paths import data_dir
from simserve.scenario.compare import OF_THE_COMPARISON, variant_documents
from simserve.scenario.document import Document, KeyPath, override, path_of, put, read_document
from simserve.scenario.explain import explain
from simserve.scenario.files import around, find
from simserve.scenario.names import with_our_names
from simserve.scenario.ratio import with_ratios
from simserve.scenario.spec import STUDIES, Scenario


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
        """Put the place and the path of a value before the message of a user's mistake raised inside.

        A message that begins with `key = ` is about that key inside `path`.
        """
        try:
            yield
        except UserError as error:
            key, equals, _ = str(error).partition(" = ")
            if equals and (*path, key) in self.document.places:
                path = (*path, key)
            where = f"{self.document.where(path)}: "
            if str(error).startswith(where):
                raise  # raised where the place was known
            lines = [where + line for line in str(error).splitlines()]
            raise type(error)("\n".join(lines)) from error

    def file(self, name: str, path: KeyPath) -> Path:
        """Return the file that the value `name` at `path` names; raises `ScenarioError` if there is none."""
        found = find(name, self.folder)
        if found is None:
            raise ScenarioError(
                f"{self.document.where(path)}: no file {name!r} beside the scenario, in the "
                f"current folder, or in the data that ships with simserve{nearest(name, around(self.folder))}"
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
        from simserve.scenario.problems import of_document

        raise of_document(document, folder, error) from error


def _validated(document: Document, folder: Path) -> LoadedScenario:
    """Validate a document and the variants in it."""
    try:
        scenario = Scenario.model_validate(document.data)
    except ValidationError as error:
        raise explain(error, document, Scenario) from error
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
