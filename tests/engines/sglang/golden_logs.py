"""Where recordings of the real SGLang scheduler lie: a part in the repository, all of them beside it."""

from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[3]
COMMITTED = sorted((_REPOSITORY / "tests" / "conformance" / "sglang-0.5.23").glob("*.jsonl.gz"))
_SETS = [_REPOSITORY.parent / "shared" / "validation" / name for name in ("engine_golden", "engine_golden_2")]
SHARED = [path for folder in _SETS for path in sorted((folder / "sglang-0.5.23").glob("*.jsonl.gz"))]
WINDOWS = ("w01", "w02")
"""Logs of a server with a pool of its own for window layers, which is not modelled."""


def committed(name):
    """Return the committed log whose name begins with `name`."""
    (path,) = [path for path in COMMITTED if path.name.startswith(name)]
    return path
