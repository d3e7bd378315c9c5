"""Write a trace to a file, in any format that has a writer."""

from __future__ import annotations

import gzip
from pathlib import Path

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload.writers.base import WRITERS


def write_trace(
    trace: Trace, path: str | Path, format: str, *, lossy: bool = False, force: bool = False
) -> list[str]:
    """Write `trace` to `path` (compressed if it ends in .gz) and return what the format could not hold.

    The same trace gives the same bytes. Raises `TraceError` if something would be lost and `lossy` is not
    set, if the file exists and `force` is not set, or if the ending is not one of the format's.
    """
    path = Path(path)
    writer = WRITERS.get(format)()
    _check_ending(path, format, writer.suffixes)
    losses = writer.losses(trace)
    if losses and not lossy:
        raise TraceError(
            f"{path}: format {format} cannot hold {'; '.join(losses)}: choose plain, or accept the loss"
        )
    if path.exists() and not force:
        raise TraceError(f"{path}: exists already: remove it, or force overwriting")
    if not path.parent.is_dir():
        raise TraceError(f"{path}: there is no folder {path.parent}")
    content = writer.encode(trace, path)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return losses


def format_of(path: str | Path) -> str:
    """Return the format that a file's ending suggests: mooncake for .jsonl, else plain."""
    return "mooncake" if ".jsonl" in Path(path).suffixes else "plain"


def _check_ending(path: Path, format: str, suffixes: tuple[str, ...]) -> None:
    stem = path.name.removesuffix(".gz")
    if not stem.endswith(suffixes):
        allowed = ", ".join(f"{suffix}[.gz]" if suffix != ".parquet" else suffix for suffix in suffixes)
        raise TraceError(f"{path}: a file of format {format} ends in {allowed}")
    if path.name.endswith(".parquet.gz"):
        raise TraceError(f"{path}: Parquet is compressed already: write .parquet")
