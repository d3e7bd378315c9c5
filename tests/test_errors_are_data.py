"""No code reads the text of an exception: its fields say what it is about."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.places import REPOSITORY

READS = frozenset(
    {
        *("partition", "rpartition", "rsplit", "startswith", "endswith", "removeprefix", "removesuffix"),
        *("find", "rfind", "index", "replace", "count"),
    }
)
"""Methods of a text that look into it. `split()` without arguments and `splitlines` only fold lines."""
PATTERNS = frozenset({"search", "match", "fullmatch", "sub", "findall", "split"})

FOREIGN = {("simserve/profiler/run.py", "measure_case")}
"""torch says only in words that the memory of a CPU is full, by a RuntimeError like any other."""


def readings(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield (function, line, what is done) where the text of an exception is looked into."""
    yield from _readings(ast.parse(source), "", frozenset())


def _readings(node: ast.AST, function: str, caught: frozenset[str]) -> Iterator[tuple[str, int, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = [*node.args.args, *node.args.kwonlyargs]
        errors = {it.arg for it in arguments if it.annotation and "Error" in ast.unparse(it.annotation)}
        function, caught = node.name, caught | errors
    if isinstance(node, ast.ExceptHandler) and node.name:
        caught = caught | {node.name}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner, name = node.func.value, node.func.attr
        if _is_text(owner, caught) and (name in READS or (name == "split" and node.args)):
            yield function, node.lineno, ast.unparse(node)
        if name in PATTERNS and any(_is_text(one, caught) for one in node.args):
            yield function, node.lineno, ast.unparse(node)
    if isinstance(node, ast.Compare) and any(_is_text(one, caught) for one in (node.left, *node.comparators)):
        yield function, node.lineno, ast.unparse(node)
    for child in ast.iter_child_nodes(node):
        yield from _readings(child, function, caught)
        if isinstance(child, ast.Assign) and _is_text(child.value, caught):
            caught = caught | {f"str {it.id}" for it in child.targets if isinstance(it, ast.Name)}


def _is_text(node: ast.AST, caught: frozenset[str]) -> bool:
    """Return True for `str(error)`, `error.args[0]`, `error.message`, and a variable that holds one."""
    if isinstance(node, ast.Name):
        return f"str {node.id}" in caught
    if isinstance(node, ast.Subscript):
        whose = node.value
        return isinstance(whose, ast.Attribute) and whose.attr == "args" and _is_error(whose.value, caught)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
        return bool(node.args) and _is_error(node.args[0], caught)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # str(error).strip(), .lower()
        return node.func.attr in ("strip", "lower", "upper", "casefold") and _is_text(node.func.value, caught)
    return isinstance(node, ast.Attribute) and node.attr == "message" and _is_error(node.value, caught)


def _is_error(node: ast.AST, caught: frozenset[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in caught


def test_no_code_reads_the_text_of_an_exception() -> None:
    found = [
        f"{file}:{line}: {what}"
        for path in sorted((REPOSITORY / "simserve").rglob("*.py"))
        for file in [path.relative_to(REPOSITORY).as_posix()]
        for function, line, what in readings(path.read_text(encoding="utf-8"))
        if (file, function) not in FOREIGN
    ]
    assert found == []


CAUGHT = "try:\n    f()\nexcept E as error:\n    {}\n"


@pytest.mark.parametrize(
    "line",
    [
        "key = str(error).partition(' = ')[0]",
        "if str(error).startswith('x'): raise",
        "if 'memory' in str(error): raise",
        "if str(error).strip() == 'x': raise",
        "key = str(error).split(' = ')[0]",
        "said = str(error).replace(a, b)",
        "key = re.match('(.*) = ', str(error))",
        "key = error.args[0].partition(':')",
        "key = error.message.partition(':')",
    ],
)
def test_a_planted_reading_is_found(line: str) -> None:
    assert list(readings(CAUGHT.format(line)))


@pytest.mark.parametrize(
    "source",
    [
        CAUGHT.format("text = str(error)\n    key = text.partition(' = ')"),
        "def short(error: UserError):\n    return str(error).partition(':')",
    ],
)
def test_a_detour_is_found(source: str) -> None:
    assert list(readings(source))


@pytest.mark.parametrize(
    "line",
    [
        "raise Own(f'{path}: {error}') from error",
        "said = ' '.join(str(error).split())",
        "first = str(error).splitlines()[0]",
        "key = error.key.partition('.')",
        "where = path.name.startswith('x')",
    ],
)
def test_what_only_shows_it_is_allowed(line: str) -> None:
    assert not list(readings(CAUGHT.format(line)))
