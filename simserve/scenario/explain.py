"""Validation errors as one line each: place, path, the value found, what is allowed, the nearest match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from simserve.errors import ScenarioError, UserError, nearest, together
from simserve.scenario.document import Document, KeyPath, path_of
from simserve.scenario.part import PATTERNS

MAX_LINES = 10
"""Problems that are printed one by one; more are only counted."""

_MISSING = object()
_NUMBERS = ("int_type", "float_type")
_WHICH = ("union_tag_invalid", "union_tag_not_found")
"""Problems with the key (`kind`) that says which of several mappings is meant."""


def refuse(document: Document, path: KeyPath, found: Any, allowed: str) -> ScenarioError:
    """Return the error for the value `found` at `path`, saying what is `allowed` there."""
    return ScenarioError(f"found {_short(found)}, {allowed}", place=document.where(path))


def placed(error: UserError, document: Document, path: KeyPath) -> UserError:
    """Return an error with the place of its key, which is at `path` or in the mapping there."""
    if error.place:
        return error
    key = path_of(error.key) if error.key else ()
    full = path if path[len(path) - len(key) :] == key else (*path, *key)
    if key and full in document.places:
        return error.at(document.place(full), document.name(full))
    return error.at(document.where(path))


def explain(
    error: ValidationError,
    document: Document,
    model: type[BaseModel],
    base: KeyPath = (),
    origin: Mapping[str, KeyPath] | None = None,
    also_allowed: Iterable[str] = (),
) -> UserError:
    """Return one error with a line per problem that validating `model` on the data at `base` found.

    `origin` gives the full path of top-level keys that do not stand under `base`; `also_allowed` are keys
    that somebody else takes out of the data first.
    """
    by_path: dict[KeyPath, list[Any]] = {}
    for problem in error.errors(include_url=False):
        by_path.setdefault(path_of_problem(document, problem, base, origin), []).append(problem)
    for path in [path for path, found in by_path.items() if found[0]["type"] == "too_short"]:
        if any(other[: len(path)] == path for other in by_path if other != path):
            del by_path[path]  # the list is only short of its invalid items, which have lines of their own
    unknown = {path: found for path, found in by_path.items() if found[0]["type"] == "extra_forbidden"}
    found = [_wrong(document, path, bad, model) for path, bad in by_path.items() if path not in unknown]
    found += _unknown(document, unknown, model, sorted(also_allowed))
    if len(found) > MAX_LINES:
        more = ScenarioError(f"... and {len(found) - MAX_LINES:,} more problems", place=document.source)
        found = [*found[:MAX_LINES], more]
    return together(found)


def _unknown(
    document: Document, unknown: dict[KeyPath, list[Any]], model: type[BaseModel], also_allowed: list[str]
) -> list[UserError]:
    """One error per unknown key; for a mapping with many of them, the first few and their number."""
    by_parent: dict[KeyPath, list[KeyPath]] = {}
    for path in unknown:
        by_parent.setdefault(path[:-1], []).append(path)
    found: list[UserError] = []
    for parent, children in by_parent.items():
        loc = unknown[children[0]][0]["loc"][:-1]
        allowed = list(dict.fromkeys(_keys_at(model, loc) + also_allowed))
        if len(children) <= 3:
            found += [_unknown_key(document, path, allowed, model) for path in children]
            continue
        names = ", ".join(repr(path[-1]) for path in children[:3])
        where = f"{document.place(children[0])}: {document.name(parent)}"
        hint = nearest(str(children[0][-1]), allowed)
        message = f"{len(children):,} unknown keys: {names} ...{hint}"
        found.append(ScenarioError(message, allowed=", ".join(allowed), place=where))
    return found


def _unknown_key(document: Document, path: KeyPath, allowed: list[str], model: type[BaseModel]) -> UserError:
    value = _value_at(document.data, path)
    key = str(path[-1])
    hint = (_elsewhere(model, key) if len(path) == 1 else "") or nearest(key, allowed)
    message = f"unknown key {key!r} (with the value {_short(value)}){hint}"
    return ScenarioError(message, allowed=", ".join(allowed), place=document.where(path))


def _wrong(document: Document, path: KeyPath, problems: list[Any], model: type[BaseModel]) -> UserError:
    """Return the error about what is wrong at `path`."""
    if problems[0]["type"] == "value_error":
        error = problems[0]["ctx"]["error"]
        return placed(error if isinstance(error, UserError) else ScenarioError(str(error)), document, path)
    return ScenarioError(_sentence(document, path, problems, model), place=document.where(path))


def _sentence(document: Document, path: KeyPath, problems: list[Any], model: type[BaseModel]) -> str:
    first = problems[0]
    if first["type"] == "missing":
        return "is required and missing"
    if first["type"] == "union_tag_not_found":
        kinds = [_literals_of(one, str(path[-1])) for one in _models_at(model, first["loc"])]
        return f"is required and missing; allowed: {', '.join(word for some in kinds for word in some)}"
    wanted = list(dict.fromkeys(_wanted(problem) for problem in problems))
    value = _value_at(document.data, path) if first["type"] in _WHICH else first["input"]
    literals = [word for problem in problems for word in _literals(problem)]
    hint = nearest(value, literals) if isinstance(value, str) else ""
    return f"found {_short(value)}, allowed: {' or '.join(wanted)}{hint}"


def _wanted(problem: Any) -> str:
    """What pydantic wanted, as a noun: 'Input should be a valid integer' -> 'a valid integer'."""
    if problem["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "a mapping of keys"
    if problem["type"] == "tuple_type":
        return "a list"
    if problem["type"] == "too_short":
        return f"a list of at least {problem['ctx']['min_length']}"
    if problem["type"] == "string_pattern_mismatch":
        pattern = problem["ctx"]["pattern"]
        return PATTERNS.get(pattern, f"a word like {pattern}")
    if problem["type"] in _WHICH:
        *others, last = map(repr, _literals(problem))
        return f"{', '.join(others)} or {last}"
    message = str(problem["msg"]).removeprefix("Input should be ")
    quotes = " without quotes" if problem["type"] in _NUMBERS and _is_number(problem["input"]) else ""
    return message[:1].lower() + message[1:] + quotes


def _is_number(value: Any) -> bool:
    """Return True for a string that would be a number if it had no quotes."""
    try:
        return isinstance(value, str) and isfinite(float(value))
    except ValueError:
        return False


def _literals(problem: Any) -> list[str]:
    """Return the words that are allowed, where only some are."""
    expected = problem.get("ctx", {}).get("expected") if problem["type"] == "literal_error" else None
    expected = problem.get("ctx", {}).get("expected_tags", expected)
    words = expected.replace(" or ", ",").split(",") if expected else []
    return [word.strip().strip("'") for word in words]


def path_of_problem(
    document: Document, problem: Any, base: KeyPath = (), origin: Mapping[str, KeyPath] | None = None
) -> KeyPath:
    """Return the problem's path in the data, without the names that pydantic adds for a union's branches."""
    loc = problem["loc"]
    if origin and loc and loc[0] in origin:
        base, loc = origin[loc[0]], loc[1:]
    node, path = _value_at(document.data, base), base
    for depth, part in enumerate(loc):
        child = _child(node, part)
        missing = problem["type"] == "missing" and depth == len(loc) - 1
        if child is not _MISSING or missing:
            path, node = (*path, part), child
    return (*path, problem["ctx"]["discriminator"].strip("'")) if problem["type"] in _WHICH else path


def _value_at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = _child(data, part)
    return data


def _child(node: Any, part: Any) -> Any:
    try:
        return node[part] if isinstance(node, dict | list) else _MISSING
    except (KeyError, IndexError, TypeError):
        return _MISSING


def _keys_at(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Return the keys that the (nested) model at `loc` accepts."""
    return sorted({name for branch in _models_at(model, loc) for name in _written_keys(branch)})


def _written_keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of a mapping as a file writes them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _elsewhere(model: type[BaseModel], key: str) -> str:
    """Return where an unknown key at the top would be known: ` (a key of each of pools)`; else nothing."""
    for name, field in model.model_fields.items():
        if any(key in _written_keys(inner) for inner in _models_in(field.annotation)):
            listed = "tuple" in str(field.annotation) or "list" in str(field.annotation)
            return f" (it belongs in {name}{'[]' if listed else ''})"
    return ""


def _models_at(model: type[BaseModel], loc: tuple[Any, ...]) -> list[type[BaseModel]]:
    """Return the nested model at `loc`, or the branches of the union there."""
    branches = [model]
    for part in loc:
        fields = [branch.model_fields[part] for branch in branches if part in branch.model_fields]
        if fields:
            branches = [inner for field in fields for inner in _models_in(field.annotation)] or branches
        else:  # not a key: the name that pydantic gives to a branch of a union
            branches = [branch for branch in branches if part in _names_of(branch)] or branches
    return branches


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def _names_of(model: type[BaseModel]) -> set[Any]:
    """Return the names that a branch of a union may have: its class, or the literal that tells it apart."""
    return {model.__name__, *(word for key in model.model_fields for word in _literals_of(model, key))}


def _literals_of(model: type[BaseModel], key: str) -> list[str]:
    """Return the words that a key may have, if its type names them."""
    return [word for word in get_args(model.model_fields[key].annotation) if isinstance(word, str)]


def _short(value: Any) -> str:
    """Write a value in at most 60 characters on one line."""
    if value is _MISSING:
        return "nothing"
    if isinstance(value, dict):
        return f"a mapping with the keys {', '.join(map(str, value))}"[:60] if value else "an empty mapping"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
