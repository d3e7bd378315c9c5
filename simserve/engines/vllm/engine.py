"""vLLM as an engine: its modelled releases and their defaults, and what else is true of it.

Defaults follow the API server (`EngineArgs.get_batch_defaults` and
`_set_default_max_num_seqs_and_batched_tokens_args` of 0.15.1, 0.19.0 and 0.33.0); docs/engines.md has all.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel

from simserve.engines.base import Placement
from simserve.engines.engine import Engine, EnginePreset, Options
from simserve.engines.vllm.disagg import DISAGG
from simserve.engines.vllm.memory import memory_rules
from simserve.engines.vllm.options import VllmParams
from simserve.engines.vllm.overhead import OVERHEAD
from simserve.engines.vllm.packed import BLOCK_TOKENS
from simserve.engines.vllm.scheduler import VllmPolicy
from simserve.engines.vllm.spec_decode import SPEC_DECODE
from simserve.model import ModelSpec
from simserve.model.kv import KvGroups, kv_groups
from simserve.units import GIB


def _defaults_of(version: str) -> Callable[[int, str, Options, int], Options]:
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


_CLOSE, _CLOSE_BEFORE_19 = 1.5, 1.25
"""Kinds of layers whose numbers differ by less than this factor form one group each."""


def window_groups(model: ModelSpec, params: BaseModel, tokens_per_step: int) -> KvGroups | str | None:
    """Return the KV groups of a model with windows, or the option with which all tokens are kept.

    0.33 holds the tokens of two steps if it plans ahead. None: no groups for this mix of layers.
    """
    assert isinstance(params, VllmParams)
    if params.disable_hybrid_kv_cache_manager:
        return "disable_hybrid_kv_cache_manager"
    steps = 2 if params.version == "0.33" and params.async_scheduling else 1
    close = _CLOSE_BEFORE_19 if params.version == "0.15" else _CLOSE
    return kv_groups(model, steps * tokens_per_step, close)


def _tokens_per_block(placement: Placement) -> int:
    """Return 16, or what compressed attention takes."""
    return BLOCK_TOKENS if placement.compressed else 16


def _release(version: str, release: str, memory_share: float, decides_as: str | None = None) -> EnginePreset:
    """Return a release's preset; `decides_as` names the modelled one that it is assumed to equal."""
    assumed = f", assumed to decide as {decides_as}" if decides_as else ""
    return EnginePreset(
        name=f"vllm-{version}",
        policy="vllm",
        tokens_per_block=_tokens_per_block,
        memory=memory_share,
        defaults=_defaults_of(decides_as or version),
        source=f"vLLM {release}, defaults of the API server{assumed}",
        release=release,
    )


VLLM = Engine(
    "vllm",
    "vLLM",
    VllmPolicy,
    presets=(
        _release("0.33", "0.33.0", 0.92),
        _release("0.19", "0.19.0", 0.90),
        _release("0.15", "0.15.1", 0.90),
    ),
    overhead=OVERHEAD,
    windows=window_groups,
    memory_rules=memory_rules,
    kv_tiers=True,
    disagg=DISAGG,
    spec_decode=SPEC_DECODE,
)
