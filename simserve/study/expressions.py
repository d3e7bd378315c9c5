"""Conditions on points, such as `pools.0.tp * pools.0.replicas <= 8`: arithmetic on values of a scenario.

Paths are written as in --set or with brackets. Only comparisons, arithmetic, and/or/not, numbers, words,
lists and min/max are allowed, so a scenario file cannot run code.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from simserve.errors import ScenarioError

Lookup = Callable[[str], Any]
"""Value at a dotted path."""

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_CALLS = {"min": min, "max": max, "abs": abs}
ALLOWED = "comparisons, + - * / // %, and, or, not, in, numbers, words in quotes, lists, min, max and paths"


class Condition:
    """One parsed condition."""

    def __init__(self, text: str) -> None:
        """Raises `ScenarioError` for what is not such an expression."""
        self.text = text
        try:
            self._tree = ast.parse(re.sub(r"(?<=[A-Za-z_\]])\.(\d+)", r"[\1]", text), mode="eval").body
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ScenarioError(f"{text!r} is not a condition; allowed: {ALLOWED}") from error
        self.paths: list[str] = []
        self._check(self._tree)

    def holds(self, value_at: Lookup) -> bool:
        """Return whether the condition is true; raises `ScenarioError` if it cannot be evaluated."""
        try:
            return bool(self._value(self._tree, value_at))
        except (TypeError, ZeroDivisionError, ValueError) as error:
            raise ScenarioError(f"{self.text!r} cannot be evaluated: {error}") from error

    def _check(self, node: ast.AST) -> None:
        path = _path(node)
        if path is not None:
            self.paths.append(path)
            return
        allowed = (
            ast.BoolOp,
            ast.UnaryOp,
            ast.BinOp,
            ast.Compare,
            ast.Constant,
            ast.List,
            ast.Tuple,
            ast.Call,
        )
        known_call = isinstance(node, ast.Call) and _name(node.func) in _CALLS and not node.keywords
        power = isinstance(node, ast.BinOp) and type(node.op) not in _BINARY
        identity = isinstance(node, ast.Compare) and any(type(op) not in _COMPARE for op in node.ops)
        if (
            not isinstance(node, allowed)
            or (isinstance(node, ast.Call) and not known_call)
            or power
            or identity
        ):
            raise ScenarioError(f"{self.text!r}: {ast.unparse(node)!r} is not allowed; allowed: {ALLOWED}")
        for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._check(child)

    def _value(self, node: ast.AST, value_at: Lookup) -> Any:
        path = _path(node)
        if path is not None:
            return value_at(path)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item, value_at) for item in node.elts]
        if isinstance(node, ast.BoolOp):
            values = (self._value(item, value_at) for item in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, value_at)
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.BinOp):
            return _BINARY[type(node.op)](self._value(node.left, value_at), self._value(node.right, value_at))
        if isinstance(node, ast.Call):
            return _CALLS[_name(node.func)](*(self._value(item, value_at) for item in node.args))
        assert isinstance(node, ast.Compare)
        left = self._value(node.left, value_at)
        for op, item in zip(node.ops, node.comparators, strict=True):
            right = self._value(item, value_at)
            if not _COMPARE[type(op)](left, right):
                return False
            left = right
        return True


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _path(node: ast.AST) -> str | None:
    """Return the dotted path that names, attributes and indices write; None for anything else."""
    if isinstance(node, ast.Name):
        return None if node.id in ("True", "False", "None") else node.id
    if isinstance(node, ast.Attribute):
        base = _path(node.value)
        return None if base is None else f"{base}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base = _path(node.value)
        return None if base is None else f"{base}.{node.slice.value}"
    return None
