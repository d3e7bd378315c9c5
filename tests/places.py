"""Where the repository is, and where measurements that do not ship would be, beside it."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"
"""Whoever reads it is marked `reference("what it reads")` and skipped where that is not there."""
