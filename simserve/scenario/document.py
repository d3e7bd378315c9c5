"""A scenario file as plain data that remembers where every value stands.

Line numbers come from ruamel.yaml; `--set path=value` options change the data and become the place of
what they changed. Nothing here knows what a scenario means.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError, RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from simserve.errors import ScenarioError

KeyPath = tuple[str | int, ...]
"""Keys and indices from the top of the file to a value."""

SHORT_FORMS = {"engine": "preset", "router": "kind", "decode_router": "kind"}
"""Keys that accept a bare name; the key that the name then stands for."""

MAX_VALUES = 200_000
"""Values that a file may hold once its aliases are expanded: guards against aliases of aliases."""


@dataclass
class Document:
    """Plain data (dicts, lists, scalars) and the place of each path in it."""

    source: str
    """File name as the user gave it."""
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)
    """Path to `file:line`, or to the `--set` option that put the value there."""
    variant: str = ""
    """Which variant of a comparison this is; empty for the scenario itself."""
    written: dict[KeyPath, KeyPath] = field(default_factory=dict)
    """For a variant, where in the file its own values stand: `pools` -> `compare.big.pools`."""

    def where(self, path: KeyPath) -> str:
        """Return the place of `path` and its name: `demo.yaml:7: pools[0].tp`."""
        return f"{self.place(path)}: {self.name(path)}"

    def name(self, path: KeyPath) -> str:
        """Return the name of `path` as the user wrote it; in a variant, `compare.big.pools[0].tp`."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.written:
                return dotted((*self.written[path[:end]], *path[end:]))
            if path[:end] in self.places:
                break
        return dotted(path) + (f" (in variant {self.variant})" if self.variant else "")

    def place(self, path: KeyPath) -> str:
        """Return where `path` stands; for a missing key, where its parent does."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return self.source


def dotted(path: KeyPath) -> str:
    """Write a path the way the messages do: `pools[0].tp`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(top level)"


def read_document(path: Path, source: str | None = None) -> Document:
    """Parse the YAML file at `path`; messages call it `source`. Raises `ScenarioError` with the line."""
    source = source or str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ScenarioError(f"{source}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{source}: is not UTF-8 text (byte {error.start})") from error
    return parse_document(text, source)


def parse_document(text: str, source: str) -> Document:
    """Parse YAML `text`; refuses syntax errors, duplicate keys and anything but a mapping."""
    root = _load(text, source)
    if not isinstance(root, CommentedMap):
        found = "nothing" if root is None else f"a {_kind(root)}"
        raise ScenarioError(
            f"{source}:1: a scenario is a mapping of keys such as name and model, found {found}"
        )
    document = Document(source, places={(): f"{source}:1"})
    document.data = _plain(root, (), document)
    return document


def override(document: Document, option: str) -> None:
    """Apply one `--set` option, `path=value`, where value is YAML and path like `pools.0.tp`."""
    path_text, equals, value_text = option.partition("=")
    where = f"--set {option}"
    if not equals or not path_text:
        raise ScenarioError(f"{where}: expected path=value, for example --set pools.0.tp=2")
    path = path_of(path_text)
    put(document, path, _plain(_load(value_text, where), path, Document(where)), where)


def path_of(text: str) -> KeyPath:
    """Return the path that `pools.0.tp` writes."""
    return tuple(int(part) if part.isdigit() else part for part in text.split("."))


def put(document: Document, path: KeyPath, value: Any, where: str) -> None:
    """Set the plain `value` at `path`, making missing mappings on the way; `where` becomes its place."""
    container = _container(document.data, path, where)
    if value is None and isinstance(container, dict):
        container.pop(path[-1], None)
    else:
        container[path[-1]] = value
    for known in [p for p in document.places if p[: len(path)] == path]:
        del document.places[known]
    for end in range(1, len(path) + 1):
        document.places.setdefault(path[:end], where)


def _container(data: Any, path: KeyPath, where: str) -> Any:
    """Return what holds the last part of `path`, making missing mappings on the way."""
    node = data
    for depth, part in enumerate(path):
        _check_step(node, path[:depth], part, where)
        if depth < len(path) - 1:
            node = _step(node, part)
    return node


def _check_step(node: Any, here: KeyPath, part: str | int, where: str) -> None:
    if isinstance(node, list) and not (isinstance(part, int) and part < len(node)):
        allowed = f"indices 0 to {len(node) - 1}" if node else "no entries"
        raise ScenarioError(f"{where}: {dotted(here)} is a list with {allowed}, found {part!r}")
    if not isinstance(node, list | dict):
        raise ScenarioError(f"{where}: {dotted(here)} is {node!r}, which has nothing inside to set")


def _step(node: Any, part: Any) -> Any:
    """Return the child called `part`; a missing one becomes a mapping, a short form its long form."""
    child = node.get(part) if isinstance(node, dict) else node[part]
    if child is None:
        child = node[part] = {}
    elif isinstance(child, str) and part in SHORT_FORMS:
        child = node[part] = {SHORT_FORMS[part]: child}
    return child


def _load(text: str, source: str) -> Any:
    yaml = YAML(typ="rt", pure=True)
    yaml.Constructor = _Constructor
    try:
        return yaml.load(text)
    except _DuplicateKey as error:
        message = f"found duplicate key {error.key!r} (each key may stand once)"
        raise ScenarioError(message, place=_at(source, error.line)) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(str(error.problem or error.context or "cannot be parsed").split())
        raise ScenarioError(f"{_at(source, line)}: not valid YAML: {problem}") from error
    except RecursionError as error:
        raise ScenarioError(f"{source}: not valid YAML: nested too deeply") from error
    except (YAMLError, ValueError) as error:
        first = " ".join(str(error).split())
        raise ScenarioError(f"{source}: not valid YAML: {first}") from error


class _DuplicateKey(Exception):
    def __init__(self, key: Any, line: int) -> None:
        super().__init__(key, line)
        self.key, self.line = key, line


class _Constructor(RoundTripConstructor):
    """Says which key stands twice, where ruamel only words it."""

    def check_mapping_key(self, node: Any, key_node: Any, mapping: Any, key: Any, value: Any) -> bool:
        try:
            return super().check_mapping_key(node, key_node, mapping, key, value)
        except DuplicateKeyError as error:
            raise _DuplicateKey(key, key_node.start_mark.line + 1) from error


def _at(source: str, line: int) -> str:
    return source if source.startswith("--set") else f"{source}:{line}"


def _plain(node: Any, path: KeyPath, document: Document) -> Any:
    """Return `node` as dicts, lists and plain scalars, and note the place of each value."""
    if len(document.places) > MAX_VALUES:
        raise ScenarioError(
            f"{document.source}: holds more than {MAX_VALUES:,} values (aliases inside aliases?)"
        )
    if isinstance(node, CommentedMap):
        return _plain_map(node, path, document)
    if isinstance(node, CommentedSeq):
        items = []
        for index, item in enumerate(node):
            here = (*path, index)
            document.places[here] = _at(document.source, node.lc.item(index)[0] + 1)
            items.append(_plain(item, here, document))
        return items
    return _plain_scalar(node, path, document)


def _plain_map(node: CommentedMap, path: KeyPath, document: Document) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in node.items():
        line = node.lc.key(key)[0] + 1 if key in (node.lc.data or {}) else node.lc.line + 1
        place = _at(document.source, line)
        if not isinstance(key, str):
            raise ScenarioError(f"{place}: {dotted(path)}: keys are words, found {key!r}")
        document.places[(*path, key)] = place
        plain[key] = _plain(item, (*path, key), document)
    return plain


def _plain_scalar(node: Any, path: KeyPath, document: Document) -> Any:
    if node is None or isinstance(node, bool):
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    if type(node).__name__ == "ScalarBoolean":
        return bool(node)
    raise ScenarioError(
        f"expected a number, a word, a list or a mapping, found the {_kind(node)} {node}",
        place=f"{document.place(path)}: {dotted(path)}",
    )


def _kind(node: Any) -> str:
    if isinstance(node, list):
        return "list"
    return {"str": "word", "int": "number", "float": "number"}.get(type(node).__name__, type(node).__name__)
