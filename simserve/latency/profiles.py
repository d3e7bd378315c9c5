"""Where kernel measurements are found: the user's folders first, then those that ship with simserve.

A folder holds `<gpu>/<op>.parquet`. Files are read when first asked for, and rows that the quality bits
exclude are left out; `ProfileStore.notes` says which and how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from simserve.latency.profile_file import ProfileTable, file_sha256, read_profile
from simserve.paths import data_dir


class ProfileStore:
    """Tables of kernel latencies by (GPU, operation)."""

    def __init__(self, folders: Sequence[Path] = (), shipped: bool = True) -> None:
        """Search `folders` in order, then (if `shipped`) what comes with simserve."""
        self.folders = [Path(folder) for folder in folders] + (
            [data_dir("kernels_profile")] if shipped else []
        )
        self._tables: dict[tuple[str, str], ProfileTable | None] = {}

    def table(self, gpu: str, op: str) -> ProfileTable | None:
        """Return the table, or None if no folder has the file."""
        key = (gpu, op)
        if key not in self._tables:
            path = self.path(gpu, op)
            self._tables[key] = read_profile(path) if path else None
        return self._tables[key]

    def path(self, gpu: str, op: str) -> Path | None:
        """Return the first folder's file for (gpu, op), or None."""
        paths = (folder / gpu / f"{op}.parquet" for folder in self.folders)
        return next((path for path in paths if path.is_file()), None)

    def gpus(self) -> list[str]:
        """Return the names of all GPUs that have at least one table."""
        return sorted({file.parent.name for folder in self.folders for file in folder.glob("*/*.parquet")})

    def ops(self, gpu: str) -> list[str]:
        """Return the operations measured on a GPU."""
        return sorted({file.stem for folder in self.folders for file in folder.glob(f"{gpu}/*.parquet")})

    def hashes(self) -> dict[str, str]:
        """Return `<gpu>/<op>` -> SHA-256 of every file read so far, for the manifest."""
        used = {key: table for key, table in self._tables.items() if table is not None}
        return {f"{gpu}/{op}": file_sha256(table.path) for (gpu, op), table in sorted(used.items())}

    def notes(self) -> list[str]:
        """Return a sentence for each table read so far that lost rows to the quality bits."""
        return [
            f"{gpu}/{op}: {table.dropped} rows left out by their quality bits, {len(table)} used"
            for (gpu, op), table in sorted(self._tables.items())
            if table is not None and table.dropped
        ]


@lru_cache(maxsize=1)
def shipped_profiles() -> ProfileStore:
    """Return the store of what comes with simserve (one per process, so that files are read once)."""
    return ProfileStore()
