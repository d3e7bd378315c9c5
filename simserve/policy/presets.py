"""Engine presets: which policy, and which defaults, a named engine version stands for.

Defaults that depend on the GPU's memory follow vLLM's API server (read in vLLM 0.33.0; assumed the same in
0.19 and 0.15, but for their 0.90 of the memory).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simserve.errors import ScenarioError, nearest
from simserve.units import GIB

Options = dict[str, Any]


@dataclass(frozen=True)
class EnginePreset:
    """A named engine version."""

    name: str
    policy: str
    block_size: int
    gpu_memory_utilization: float
    defaults: Callable[[int, str], Options]
    source: str

    def options(self, gpu_memory_bytes: int, gpu_name: str) -> Options:
        """Return the version's defaults for a GPU with that memory (bytes) and that name (`a100_sxm` ...)."""
        return self.defaults(gpu_memory_bytes, gpu_name)


def _vllm(version: str) -> Callable[[int, str], Options]:
    def defaults(gpu_memory_bytes: int, gpu_name: str) -> Options:
        if gpu_memory_bytes >= 160 * GIB:
            tokens, seqs = 16384, 1024
        elif gpu_memory_bytes >= 70 * GIB and not gpu_name.startswith("a100"):
            tokens, seqs = 8192, 1024
        else:
            tokens, seqs = 2048, 256
        return {"version": version, "max_num_batched_tokens": tokens, "max_num_seqs": seqs}

    return defaults


def _none(gpu_memory_bytes: int, gpu_name: str) -> Options:
    return {}


_PRESETS = [
    EnginePreset("vllm-0.33", "vllm", 16, 0.92, _vllm("0.33"), "vLLM 0.33.0, defaults of the API server"),
    EnginePreset("vllm-0.19", "vllm", 16, 0.90, _vllm("0.19"), "vLLM 0.19.0, defaults of the API server"),
    EnginePreset("vllm-0.15", "vllm", 16, 0.90, _vllm("0.15"), "vLLM 0.15.1, defaults of the API server"),
    EnginePreset("orca", "orca", 16, 0.90, _none, "Orca (OSDI 2022); memory share assumed as in vLLM"),
    EnginePreset("static", "static", 16, 0.90, _none, "static batching; memory share assumed as in vLLM"),
]
ENGINES = {preset.name: preset for preset in _PRESETS}


def engine_preset(name: str) -> EnginePreset:
    """Return the preset called `name`; raises ScenarioError with the nearest match."""
    if name not in ENGINES:
        known = ", ".join(ENGINES)
        raise ScenarioError(f"unknown engine {name!r}{nearest(name, ENGINES)}; known: {known}")
    return ENGINES[name]
