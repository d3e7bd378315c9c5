"""Engine presets: which policy, and which defaults, a named engine version stands for.

Defaults that depend on the GPU follow vLLM's API server (`EngineArgs.get_batch_defaults` and
`_set_default_max_num_seqs_and_batched_tokens_args` of 0.15.1, 0.19.0 and 0.33.0) and SGLang's
`arg_groups/memory_hook.py` (0.5.23). All defaults, and where each was read: docs/engines.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simserve.engines.base import Placement
from simserve.engines.sglang.options import RANK_SEQUENCES, chunk_tokens, page_tokens, static_share
from simserve.errors import ScenarioError, nearest
from simserve.units import GIB

Options = dict[str, Any]


@dataclass(frozen=True)
class EnginePreset:
    """A named engine version."""

    name: str
    policy: str
    tokens_per_block: int | Callable[[Placement], int]
    """Default tokens per KV block, or how they follow from GPU and model."""
    memory: float | Callable[[int, Options, Placement], float]
    """Share of a GPU's memory that the engine may use, or how it follows from memory, settings, placement."""
    defaults: Callable[[int, str, Options, int], Options]
    source: str
    release: str = ""
    """The release whose defaults these are; empty if the engine has no versions."""
    rank_sequences: int | None = None
    """Default `max_running_requests` of every attention rank, if what is given is shared by them."""

    def options(
        self, gpu_memory_bytes: int, gpu_name: str, given: Options, max_model_len: int, dp: int = 1
    ) -> Options:
        """Return the version's settings: those that are `given`, and its defaults for all others.

        The GPU has that memory (bytes) and that name (`a100_sxm` ...); `max_model_len` as the engine is told.
        The settings are the server's, which `dp` attention ranks share (`PolicyParams.of_rank`).
        """
        defaults = self.defaults(gpu_memory_bytes, gpu_name, given, max_model_len)
        if dp > 1 and self.rank_sequences is not None:
            defaults["max_running_requests"] = self.rank_sequences * dp
        return defaults | given

    def block_size(self, placement: Placement) -> int:
        """Return the default tokens per KV block on such GPUs, for such a model."""
        return self.tokens_per_block(placement) if callable(self.tokens_per_block) else self.tokens_per_block

    @property
    def version(self) -> str | None:
        """The release that the policy follows, if it follows several."""
        return self.options(0, "", {}, 1).get("version")

    def memory_share(self, gpu_memory_bytes: int, options: Options, placement: Placement) -> float:
        """Return the share of the memory (0 to 1) with these settings, as told to the server."""
        return self.memory(gpu_memory_bytes, options, placement) if callable(self.memory) else self.memory


def _vllm(version: str) -> Callable[[int, str, Options, int], Options]:
    def defaults(gpu_memory_bytes: int, gpu_name: str, given: Options, max_model_len: int) -> Options:
        if gpu_memory_bytes >= 160 * GIB and version == "0.33":
            tokens, seqs = 16384, 1024
        elif gpu_memory_bytes >= 70 * GIB and not gpu_name.startswith("a100"):
            tokens, seqs = 8192, 1024
        else:
            tokens, seqs = 2048, 256
        if given.get("performance_mode") == "throughput":
            tokens, seqs = 2 * tokens, 2 * seqs
        seqs = _given(given, "max_num_seqs", seqs)
        if not given.get("enable_chunked_prefill", True):
            tokens = max(tokens, max_model_len)
        tokens = _given(given, "max_num_batched_tokens", min(tokens, seqs * max_model_len))
        return {
            "version": version,
            "max_num_batched_tokens": tokens,
            "max_num_seqs": min(seqs, tokens),
            "async_scheduling": True,
        }

    return defaults


def _given(given: Options, name: str, default: int) -> int:
    """Return a setting that is given, or the default; what is no number is refused elsewhere."""
    value = given.get(name)
    return value if isinstance(value, int) and value > 0 else default


def _sglang(gpu_memory_bytes: int, gpu_name: str, given: Options, max_model_len: int) -> Options:
    return {"chunked_prefill_size": chunk_tokens(gpu_memory_bytes)}


def _none(gpu_memory_bytes: int, gpu_name: str, given: Options, max_model_len: int) -> Options:
    return {}


_PRESETS = [  # of each engine the newest first
    EnginePreset(
        "vllm-0.33", "vllm", 16, 0.92, _vllm("0.33"), "vLLM 0.33.0, defaults of the API server", "0.33.0"
    ),
    EnginePreset(
        "vllm-0.19", "vllm", 16, 0.90, _vllm("0.19"), "vLLM 0.19.0, defaults of the API server", "0.19.0"
    ),
    EnginePreset(
        "vllm-0.15", "vllm", 16, 0.90, _vllm("0.15"), "vLLM 0.15.1, defaults of the API server", "0.15.1"
    ),
    EnginePreset(
        "sglang-0.5.23",
        "sglang",
        page_tokens,
        static_share,
        _sglang,
        "SGLang 0.5.23, defaults of its server",
        "0.5.23",
        RANK_SEQUENCES,
    ),
    EnginePreset("orca", "orca", 16, 0.90, _none, "Orca (OSDI 2022); memory share assumed as in vLLM"),
    EnginePreset("static", "static", 16, 0.90, _none, "static batching; memory share assumed as in vLLM"),
]
ENGINES = {preset.name: preset for preset in _PRESETS}


def engine_preset(name: str) -> EnginePreset:
    """Return the preset called `name`; raises ScenarioError with the nearest match."""
    return ENGINES[engine_called(name)]


def engine_called(name: str) -> str:
    """Return the preset that `name` means: `vllm==0.33.0`, `vLLM 0.33`, or `vllm` for the newest modelled.

    A bare name is what an unpinned installation gives, and the resolved scenario pins what was taken. A
    version is understood as far as it is given; one that is not modelled is refused, because defaults change
    from one minor version to the next.
    """
    if name in ENGINES:
        return name
    engine, version = _engine_and_version(name)
    ours = [preset for preset in _PRESETS if preset.name.partition("-")[0] == engine]
    if not ours:
        raise ScenarioError(f"unknown engine {name!r}{_hint(name)}; known: {', '.join(ENGINES)}")
    for preset in ours:  # newest first
        if f"{preset.release}.".startswith(f"{version}." if version else ""):
            return preset.name
    modelled = ", ".join(f"{preset.name} ({preset.release})" for preset in ours)
    raise ScenarioError(f"unknown engine {name!r}{nearest(name, ENGINES)}; of {engine} are known: {modelled}")


def _engine_and_version(name: str) -> tuple[str, str]:
    """Split `vLLM v0.33.0` into `vllm` and `0.33.0`; the version is empty where none is given."""
    match = re.fullmatch(r"([a-z_]+?)[-_ =:@]*v?(\d+(?:\.\d+)*)?", name.strip().lower())
    if match is None:
        return "", ""
    return match[1], match[2] or ""


def _hint(name: str) -> str:
    if re.match(r"(tensorrt|trt)", name.strip().lower()):
        return " (TensorRT-LLM's scheduler is not modelled; its host times are: overhead: trtllm)"
    return nearest(name, ENGINES)
