"""Where recordings of the real SGLang scheduler lie: a part in the repository, all of them beside it."""

from tests.places import REPOSITORY, SHARED

COMMITTED = sorted((REPOSITORY / "tests" / "conformance" / "sglang-0.5.23").glob("*.jsonl.gz"))
SETS = ("validation/engine_golden", "validation/engine_golden_2")
ALL = [path for one in SETS for path in sorted((SHARED / one / "sglang-0.5.23").glob("*.jsonl.gz"))]
WINDOWS = ("w01", "w02")
"""Logs of a server with a pool of its own for window layers, which is not modelled."""


def committed(name):
    """Return the committed log whose name begins with `name`."""
    (path,) = [path for path in COMMITTED if path.name.startswith(name)]
    return path
