"""The device that is measured: a CUDA GPU, or this machine's CPU. Reads its state, never changes it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from simserve.errors import ProfileError, nearest

# What the profiler needs from outside: torch, and kernel libraries where they are installed.

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


DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Dtypes of activations, and torch's names for them."""
FP8_CAPABILITY = 89
"""Compute capability (times ten) from which a GPU has fp8 units: Ada and Hopper."""
MAX_ROTATION = 64
"""Most copies of a kernel's inputs."""
USABLE_SHARE = 0.8
"""Share of the free memory that one kernel's inputs may take."""


class NotEnoughMemory(Exception):
    """The inputs of a kernel do not fit; the message says how much was needed and free."""


@dataclass(frozen=True)
class Device:
    """One device; `kind` is "cuda" or "cpu"."""

    kind: str
    title: str
    cache_bytes: int
    """Last-level cache: L2 of a GPU, L3 of a CPU."""
    compute_capability: int
    """Times ten (90 = Hopper); 0 for a CPU."""

    place: str = ""
    """Where torch puts tensors (default: `kind`)."""

    def __post_init__(self) -> None:
        """Fill in the place."""
        if not self.place:
            object.__setattr__(self, "place", self.kind)

    @property
    def is_cuda(self) -> bool:
        """True for a GPU."""
        return self.kind == "cuda"

    def free_bytes(self) -> int:
        """Return the memory that can be had now."""
        if self.is_cuda:
            return int(need_torch().cuda.mem_get_info()[0])
        match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
        return int(match[1]) * 1024 if match else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")

    def rotation(self, input_bytes: float, read_bytes: float = 0.0) -> int:
        """Return how many copies of a kernel's inputs exceed twice the cache by what calls read of them.

        `read_bytes` (0: all) is what one call reads. Raises `NotEnoughMemory` if not even one copy fits.
        """
        free = self.free_bytes() * USABLE_SHARE
        if input_bytes > free:
            raise NotEnoughMemory(f"needs {input_bytes / 1e9:.2f} GB, {free / 1e9:.2f} GB are usable")
        wanted = int(2 * self.cache_bytes / max(1.0, read_bytes or input_bytes)) + 1
        return max(1, min(wanted, MAX_ROTATION, int(free / max(1.0, input_bytes))))

    def default_dtype(self) -> str:
        """Return the dtype that a model is measured in unless told: bf16 on a GPU, fp32 on a CPU."""
        return "bf16" if self.is_cuda else "fp32"

    def more_weight_dtypes(self) -> tuple[str, ...]:
        """Return what weights are measured in besides, unless told: fp8 where the device computes in it."""
        return ("fp8",) if self.compute_capability >= FP8_CAPABILITY else ()

    def check_dtype(self, dtype: str) -> None:
        """Raise `ProfileError` with one line if this device cannot compute in `dtype`."""
        if dtype not in (*DTYPES, "fp8", "fp8_block"):
            known = [*DTYPES, "fp8", "fp8_block"]
            raise ProfileError(f"unknown dtype {dtype!r}{nearest(dtype, known)}; known: {', '.join(known)}")
        if dtype.startswith("fp8") and self.compute_capability < FP8_CAPABILITY:
            raise ProfileError(f"{self.title} has no fp8 units: measure in bf16, fp16 or fp32")
        if dtype == "bf16" and self.is_cuda and self.compute_capability < 80:
            raise ProfileError(f"{self.title} has no bf16 units: measure in fp16")

    def facts(self) -> dict[str, Any]:
        """Return what a profile says of where it was measured."""
        torch = need_torch()
        facts: dict[str, Any] = {
            "device": self.title, "torch": torch.__version__, "cuda": torch.version.cuda, "driver": None,
            "python": platform.python_version(), "threads": torch.get_num_threads(),
            "load_average": [round(load, 2) for load in os.getloadavg()], "clocks": self.clocks(),
        }  # fmt: skip
        if self.is_cuda:
            facts["driver"] = _nvidia_smi("driver_version") or None
        return facts

    def clocks(self) -> str:
        """Return the clocks as the system reports them now; they are never set."""
        if self.is_cuda:
            return _nvidia_smi("clocks.sm,clocks.mem,temperature.gpu,power.draw")
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
        megahertz = [float(value) for value in re.findall(r"cpu MHz\s*:\s*([\d.]+)", text)]
        return f"{min(megahertz):.0f}-{max(megahertz):.0f} MHz" if megahertz else ""


def open_device(kind: str) -> Device:
    """Return the device called "cuda" or "cpu"; raises `ProfileError` with one line if there is none."""
    torch = need_torch()
    if kind == "cpu":
        return Device("cpu", _cpu_title(), _cpu_cache_bytes(), 0)
    if kind != "cuda":
        raise ProfileError(f"--device {kind!r}{nearest(kind, ('cuda', 'cpu'))}: allowed: cuda and cpu")
    if not torch.cuda.is_available():
        reason = "this torch was built without CUDA" if torch.version.cuda is None else "no GPU is visible"
        raise ProfileError(f"no CUDA device: {reason} (measure the CPU with --gpu-name cpu)")
    properties = torch.cuda.get_device_properties(0)
    capability = 10 * properties.major + properties.minor
    return Device("cuda", properties.name, int(properties.L2_cache_size), capability)


def _nvidia_smi(fields: str) -> str:
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpu_title() -> str:
    path = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*:\s*(.+)", path.read_text(encoding="utf-8")) if path.is_file() else None
    return match[1].strip() if match else platform.processor() or platform.machine()


def _cpu_cache_bytes() -> int:
    sizes = [
        int(path.read_text(encoding="utf-8").strip().removesuffix("K")) * 1024
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(sizes, default=32 * 2**20)
