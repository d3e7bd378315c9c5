"""Schedulers and routers of one's own, by decorator.

    @simserve.scheduler("lifo")
    class Lifo(OrcaPolicy): ...

A scenario then says `engine: {policy: lifo}`. Contracts: `simserve.engines.base`, `simserve.router.base`.
Other processes, such as the workers of a study, know only what they import themselves: for those, name a
class by its module, `engine: {policy: my_module:Lifo}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from simserve.engines.base import POLICIES

Class = TypeVar("Class", bound=type)


def scheduler(name: str) -> Callable[[Class], Class]:
    """Register a class as the scheduler called `name`.

    Defining the class again, as a notebook's cell does, replaces it; another class of that name is refused.
    """
    POLICIES.names()  # ours first, so that none of them is taken by accident
    return POLICIES.register(name)  # type: ignore[return-value]
