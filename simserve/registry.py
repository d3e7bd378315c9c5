"""Registries: one file, one decorator, and a component can be named in a scenario.

A registry maps names to components of one kind (policies, routers, trace formats ...). A module in
the kind's own package registers itself with the decorator; importing the package imports its modules.
A kind with few components may be a single module.
A name with a colon (`package.module:Attribute`) is imported instead, so that a user's own component
needs no edit here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from simserve.errors import ScenarioError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Names of the components of one kind."""

    def __init__(self, kind: str, *packages: str) -> None:
        """`kind` is the word used in messages; the modules of `packages` register themselves."""
        self.kind = kind
        self._packages = packages
        self._items: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorate a component to register it under `name`; a name taken twice is refused.

        The same class defined again, as a notebook's cell does when it is run again, replaces itself.
        """

        def put(item: T) -> T:
            if name in self._items and _place(self._items[name]) != _place(item):
                raise ScenarioError(f"{self.kind} {name!r} is registered twice")
            self._items[name] = item
            return item

        return put

    def get(self, name: str) -> T:
        """Return the component called `name`, or named by the dotted path `package.module:Attribute`.

        Raises `ScenarioError` naming what is known and the nearest match.
        """
        self._load()
        if name in self._items:
            return self._items[name]
        if ":" in name:
            return self._import(name)
        known = ", ".join(sorted(self._items))
        raise ScenarioError(f"unknown {self.kind} {name!r}{nearest(name, self._items)}; known: {known}")

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        self._load()
        return sorted(self._items)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        for name in self._packages:
            package = importlib.import_module(name)
            for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
                importlib.import_module(f"{name}.{module.name}")

    def _import(self, path: str) -> T:
        module_name, _, attribute = path.partition(":")
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError) as error:
            raise ScenarioError(f"cannot import {self.kind} {path!r}: {error}") from error


def _place(item: object) -> tuple[str, str]:
    """Return where a class or function was defined."""
    return getattr(item, "__module__", ""), getattr(item, "__qualname__", repr(item))
