"""Where recordings of the real SGLang scheduler lie: a part in the repository, all of them beside it."""

from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[3]
COMMITTED = sorted((_REPOSITORY / "tests" / "conformance" / "sglang-0.5.23").glob("*.jsonl.gz"))
SHARED = sorted(
    (_REPOSITORY.parent / "shared" / "validation" / "engine_golden" / "sglang-0.5.23").glob("*.jsonl.gz")
)


def committed(name):
    """Return the committed log whose name begins with `name`."""
    (path,) = [path for path in COMMITTED if path.name.startswith(name)]
    return path
