"""All engines, and their versions by name: which preset `vllm==0.33.0` means, and whose a scheduler is."""

from __future__ import annotations

import re
from dataclasses import replace

from simserve.engines.engine import Engine, EnginePreset
from simserve.engines.orca import ORCA
from simserve.engines.sglang import SGLANG
from simserve.engines.static import STATIC
from simserve.engines.trtllm import TRTLLM
from simserve.engines.vllm import VLLM
from simserve.engines.vllm.memory import memory_rules as VLLM_MEMORY_RULES
from simserve.errors import ScenarioError, nearest
from simserve.model.memory_rules import MemoryRules

ENGINES = {engine.name: engine for engine in (VLLM, SGLANG, TRTLLM, ORCA, STATIC)}
PRESETS = {preset.name: preset for engine in ENGINES.values() for preset in engine.presets}
"""Presets by name, of each engine the newest first."""
DEFAULT_ENGINE = VLLM.presets[0].name
"""What is taken where a command is given no engine."""


def engine_of(scheduler: type, label: str) -> Engine:
    """Return the engine that runs this scheduler.

    A user's own scheduler is an engine by itself, called `label`. If it extends one of ours, it takes window
    groups and KV tiers as that one does; the halves and drafting variants remain those of the original.
    """
    for engine in ENGINES.values():
        if engine.scheduler is scheduler:
            return engine
    for engine in ENGINES.values():
        if engine.scheduler is not None and issubclass(scheduler, engine.scheduler):
            own = {"presets": (), "overhead": None, "disagg": None, "spec_decode": None}
            return replace(engine, name=label, title=label, scheduler=scheduler, **own)
    return Engine(label, label, scheduler)


def engine_preset(name: str) -> EnginePreset:
    """Return the preset called `name`; raises ScenarioError with the nearest match."""
    return PRESETS[engine_called(name)]


def engine_called(name: str) -> str:
    """Return the preset that `name` means: `vllm==0.33.0`, `vLLM 0.33`, or `vllm` for the newest modelled.

    A bare name is what an unpinned installation gives, and the resolved scenario pins what was taken. A
    version is understood as far as it is given; one that is not modelled is refused, because defaults change
    from one minor version to the next.
    """
    if name in PRESETS:
        return name
    engine, version = _engine_and_version(name)
    ours = [preset for preset in PRESETS.values() if preset.name.partition("-")[0] == engine]
    if not ours:
        raise ScenarioError(f"unknown engine {name!r}{_hint(name)}; known: {', '.join(PRESETS)}")
    for preset in ours:  # newest first
        if f"{preset.release}.".startswith(f"{version}." if version else ""):
            return preset.name
    modelled = ", ".join(f"{preset.name} ({preset.release})" for preset in ours)
    raise ScenarioError(f"unknown engine {name!r}{nearest(name, PRESETS)}; of {engine} are known: {modelled}")


def memory_rules(name: str) -> MemoryRules:
    """Return the rules of an engine version or scheduler; what is no engine's own follows vLLM's newest."""
    engine, version = _engine_and_version(name)
    rules = ENGINES[engine].memory_rules if engine in ENGINES else None
    release = tuple(int(part) for part in version.split(".")) if version else None
    return rules(release) if rules is not None else VLLM_MEMORY_RULES(None)


def _engine_and_version(name: str) -> tuple[str, str]:
    """Split `vLLM v0.33.0` into `vllm` and `0.33.0`; the version is empty where none is given."""
    match = re.fullmatch(r"([a-z_]+?)[-_ =:@]*v?(\d+(?:\.\d+)*)?", name.strip().lower())
    if match is None:
        return "", ""
    return match[1], match[2] or ""


def _hint(name: str) -> str:
    if re.match(r"(tensorrt|trt)", name.strip().lower()):
        return " (TensorRT-LLM's scheduler is not modelled; its host times are: overhead: trtllm)"
    return nearest(name, PRESETS)
