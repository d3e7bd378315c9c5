"""What the profiler needs from outside: torch, and kernel libraries where they are installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from functools import cache
from types import ModuleType

from simserve.errors import ProfileError

LIBRARIES = {
    "torch": "torch",
    "triton": "triton",
    "flash_attn": "flash-attn",
    "flashinfer": "flashinfer-python",
    "flash_mla": "flash-mla",
    "deep_gemm": "deep-gemm",
    "deep_ep": "deep-ep",
    "vllm": "vllm",
}
"""Import name to distribution name of the kernel libraries that the profiler knows."""


def need_torch() -> ModuleType:
    """Return torch; raises `ProfileError` with one line if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ProfileError(
            f"profiling needs torch, which cannot be imported ({error}): pip install 'simserve[profile]'"
        ) from error


@cache
def version_of(library: str) -> str:
    """Return the version of a kernel library, "" if it is not installed."""
    if importlib.util.find_spec(library) is None:
        return ""
    try:
        return importlib.metadata.version(LIBRARIES.get(library, library))
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@cache
def library(name: str) -> ModuleType | None:
    """Return a kernel library, or None if it is not installed or cannot be imported here."""
    if not version_of(name):
        return None
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):
        return None
