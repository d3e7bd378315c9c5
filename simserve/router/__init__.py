"""Routers: one file each, found by name (see `base`).

The package can be called: `@simserve.router("mine")` registers a class as the router of that name. A function
of this name could not stand in `simserve`, because importing the package would take its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

Class = TypeVar("Class", bound=type)


class _Package(ModuleType):
    def __call__(self, name: str) -> Callable[[Class], Class]:
        """Register a class as the router called `name`, as `simserve.scheduler` does for schedulers."""
        from simserve.router.base import ROUTERS

        ROUTERS.names()  # ours first, so that none of them is taken by accident
        return ROUTERS.register(name)  # type: ignore[return-value]


sys.modules[__name__].__class__ = _Package
