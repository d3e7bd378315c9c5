"""simserve: a trace-driven discrete-event simulator of LLM serving systems.

`simserve.run` simulates a scenario and `simserve.load` reads a stored run (docs/python.md). They are loaded
when they are first used, so importing simserve costs nothing.
"""

import importlib

__version__ = "0.1.0"
_OF_API = ["Run", "Scenario", "ScenarioError", "load", "run"]


def __getattr__(name: str) -> object:
    if name in _OF_API:
        return getattr(importlib.import_module("simserve.api"), name)
    raise AttributeError(f"module 'simserve' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_OF_API])
