"""Let the profiler find modules that are not installed."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from simserve.profiler import device


def install(patch: pytest.MonkeyPatch, **modules: Any) -> None:
    """Let `need.library` find these modules, and importing them by name, too."""
    known = device.library
    patch.setattr(device, "version_of", lambda name: "0")
    for name, module in modules.items():
        patch.setitem(sys.modules, name.replace("__", "."), module)

    def library(name: str) -> Any:
        return modules.get(name) or (None if name in device.LIBRARIES and name != "torch" else known(name))

    for user in [one for key, one in sys.modules.items() if key.startswith("simserve.profiler")]:
        if hasattr(user, "library"):
            patch.setattr(user, "library", library)
        if hasattr(user, "version_of"):
            patch.setattr(user, "version_of", lambda name: "0")


def module(**names: Any) -> ModuleType:
    made = ModuleType("stand-in")
    made.__dict__.update(names)
    return made
