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
    "flex_attention": "torch",
    "transformers": "transformers",
    "triton": "triton",
    "flash_attn": "flash-attn",
    "flashinfer": "flashinfer-python",
    "flash_mla": "flash-mla",
    "deep_gemm": "deep-gemm",
    "deep_ep": "deep-ep",
    "vllm": "vllm",
}
"""Backends, and the distributions that they come with."""
WITHIN_VLLM = {"deep_gemm": "vllm.third_party.deep_gemm", "flash_mla": "vllm.third_party.flashmla"}
"""Libraries that vLLM (0.33.0) brings a copy of, used where the library itself is not installed."""


def need_torch() -> ModuleType:
    """Return torch; raises `ProfileError` with one line if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ProfileError(
            f"profiling needs torch, which cannot be imported ({error}); in your clone: "
            "pip install -e '.[profile]'"
        ) from error


class CannotTime(Exception):
    """A kernel cannot run here: a library is missing, or takes no such inputs; the journal says which."""


@cache
def version_of(backend: str) -> str:
    """Return the version of a backend's library, "" if it is not installed."""
    name = "torch" if backend == "flex_attention" else backend
    if not _installed(name):
        return f"vllm {version_of('vllm')}" if backend in WITHIN_VLLM and _installed("vllm") else ""
    try:
        return importlib.metadata.version(LIBRARIES.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(name), "__version__", "unknown"))


@cache
def library(name: str) -> ModuleType | None:
    """Return a kernel library, or None if it is not installed or cannot be imported here."""
    return _loaded(name)[0]


def needed(name: str) -> ModuleType:
    """Return a kernel library; raises `CannotTime` if it is not installed or cannot be imported here."""
    found = library(name)
    if found is None:
        copy = ", or vLLM's copy" if name in WITHIN_VLLM else ""
        raise CannotTime(f"needs {name} ({unusable(name) or f'package {LIBRARIES[name]}{copy}'})")
    return found


def unusable(name: str) -> str:
    """Return why a library that is installed cannot be imported, "" if it can or is not installed."""
    return _loaded(name)[1]


@cache
def _loaded(name: str) -> tuple[ModuleType | None, str]:
    path = name if _installed(name) else WITHIN_VLLM.get(name, "")
    if not path or not _installed(path.split(".")[0]):
        return None, ""
    try:
        return importlib.import_module(path), ""
    except Exception as error:  # an extension built for another torch or GPU may raise anything
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # sys.modules has None, or a module without a spec, under this name
        return False
