"""Where recordings of the real SGLang scheduler lie: a part in the repository, all of them beside it."""

from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[3]
COMMITTED = sorted((_REPOSITORY / "tests" / "conformance" / "sglang-0.5.23").glob("*.jsonl.gz"))
SHARED = sorted(
    (_REPOSITORY.parent / "shared" / "validation" / "engine_golden" / "sglang-0.5.23").glob("*.jsonl.gz")
)

KNOWN_DIFFERENCE = {"s20_priority_preempt.jsonl.gz": 190}
"""Logs of which not every step agrees, with the steps that must.

In this one the engine keeps the cached prompt of a preempted request (58) longer than the order of access
explains: something looks it up between steps 183 and 187 while it waits. With that one access every step
agrees, so nothing else differs.
"""


def committed(name):
    """Return the committed log whose name begins with `name`."""
    (path,) = [path for path in COMMITTED if path.name.startswith(name)]
    return path
