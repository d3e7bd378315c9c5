"""Formats of other tools that a stored run can be written in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simserve.report.llm_d import write_llm_d

EXPORTS: dict[str, Callable[[Path, Path], Path]] = {"llm-d": write_llm_d}
"""By name: a function of the result folder and the file to write, which returns the file."""
