"""simserve: a trace-driven discrete-event simulator of LLM serving systems.

`simserve.run` simulates a scenario, and what it returns can be looked at, compared and kept; docs/python.md
has all names. They are loaded when they are first used, so importing simserve costs nothing.
"""

import importlib

# Names are loaded by __getattr__ and typed in __init__.pyi.
# pyright: reportUnsupportedDunderAll=false

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "Figures",
    "Run",
    "Scenario",
    "ScenarioError",
    "Study",
    "Trace",
    "capacity",
    "compare",
    "load",
    "load_scenario",
    "load_trace",
    "router",
    "run",
    "scheduler",
    "search",
    "size",
    "sweep",
    "write_trace",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module("simserve.api"), name)
    raise AttributeError(f"module 'simserve' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
