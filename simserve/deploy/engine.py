"""Which policy an engine name stands for, and its settings: the version's defaults and the user's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from simserve.engines.base import POLICIES, Placement, PolicyParams, Scheduler
from simserve.engines.engine import Engine, EnginePreset
from simserve.engines.overheads import OVERHEADS, overhead_named, read_overhead
from simserve.engines.presets import engine_of, engine_preset
from simserve.errors import ScenarioError
from simserve.latency import ProfileStore
from simserve.latency.compile import Analytic, KernelSettings
from simserve.latency.kernels.experts import ExpertLoad
from simserve.latency.overhead import EngineOverhead
from simserve.model import ModelSpec, Parallelism
from simserve.registry import Registry
from simserve.scenario.document import KeyPath
from simserve.scenario.explain import explain, refuse
from simserve.scenario.load import LoadedScenario, portable
from simserve.scenario.part import EngineSpec
from simserve.scenario.pool_spec import PoolSpec

# What a pool says of its kernels, as the compilers of step latencies take it.


def kernel_settings(
    spec: PoolSpec, expert_load: ExpertLoad, profiles: ProfileStore, analytic: Analytic
) -> KernelSettings:
    """Return the settings that all pools have, whatever is compiled for them."""
    return {
        "weights_dtype": spec.weights_dtype,
        "kv_dtype": spec.kv_dtype,
        "experts_dtype": spec.experts_dtype,
        "moe_backend": spec.moe_backend,
        "expert_load": expert_load,
        "profiles": profiles,
        "analytic": analytic,
    }


BARE_BLOCK_SIZE = 16
"""Tokens per KV block where a policy is named without an engine version: vLLM's default."""
BARE_MEMORY = 0.90
"""Share of the GPU's memory in the same case: vLLM's default before 0.33 (assumed)."""
BARE_OVERHEAD = "vllm"
"""Engine overhead of a policy that is no engine's own: vLLM's, to compare policies on equal terms."""
BARE_SEQUENCES = 256
"""Most sequences in a step for a policy that does not say (assumed, for the memory of activations only)."""
ENGINE_KEYS = ("preset", "policy", "block_size", "overhead")
"""Keys of an engine that are not settings of its policy."""


@dataclass(frozen=True)
class ResolvedEngine:
    """An engine with every setting filled in."""

    spec: EngineSpec
    kind: Engine
    """What is true of it, whatever the settings are."""
    policy: type[Scheduler]
    params: PolicyParams
    block_size: int
    gpu_memory_utilization: float
    overhead: EngineOverhead
    """The engine's own time per step."""
    source: str
    """What the settings follow, in words."""
    told: Mapping[str, Any]
    """Settings that the server is told, where attention ranks share them: `params` are a rank's."""

    @property
    def label(self) -> str:
        """The preset's name, or the policy's."""
        return str(self.spec.preset or self.spec.policy)

    @property
    def options(self) -> dict[str, Any]:
        """Every setting of an attention rank, for the manifest."""
        own = {"block_size": self.block_size, "overhead": self.overhead.name}
        return {**self.params.model_dump(mode="json"), **own}

    def as_mapping(self) -> dict[str, Any]:
        """Return the engine as a scenario writes it, with every setting."""
        settings = {**self.options, **self.told}
        if self.spec.preset:
            return {"preset": self.spec.preset, **settings}
        return {**settings, "policy": self.spec.policy}

    @property
    def sequences(self) -> int:
        """Most sequences in one step."""
        return self.params.most_sequences or BARE_SEQUENCES

    def tokens_per_step(self, longest: int) -> int:
        """Most tokens in one step; without a budget, one longest prompt is taken."""
        return self.params.tokens_per_step(longest)

    @property
    def published_token_budget(self) -> int | None:
        """Prompt tokens of one step as the engine tells routers; None: it has no such limit."""
        return self.params.published_token_budget


def resolve_engine(
    loaded: LoadedScenario,
    pool: int,
    gpu_memory_bytes: int,
    max_model_len: int,
    model: ModelSpec | None = None,
    sm_arch: int = 0,
) -> ResolvedEngine:
    """Return the engine of the scenario's pool number `pool` on a GPU with that memory.

    `max_model_len` as the engine is told: of the pool, or the model's. Some defaults follow from `model` and
    from the GPU's compute capability (times ten).
    The pool's own engine options win over the scenario's, which win over the version's defaults.
    """
    spec = loaded.scenario.pools[pool]
    engine, origin = _merged(loaded, pool)
    preset = _preset(loaded, engine, origin)
    policy_name = preset.policy if preset else str(engine.policy)
    with loaded.blame(*origin["preset" if preset else "policy"]):
        policy = component(POLICIES, policy_name, ("Params", "add", "next_batch", "update"))
        if not issubclass(policy, Scheduler):
            raise ScenarioError(f"policy {policy_name!r} is no subclass of simserve.engines.base.Scheduler")
    two_batch = spec.overlap is not None and spec.overlap.two_batch
    degrees = Parallelism(tp=spec.tp, pp=spec.pp, dp=spec.dp)
    placement = replace(placement_of(model, sm_arch, degrees), role=spec.role, two_batch=two_batch)
    options = engine.options
    if preset is not None:
        options = preset.options(gpu_memory_bytes, spec.gpu, options, max_model_len, placement)
        _check_version(loaded, preset, options, origin)
    with loaded.blame(*origin.get("overhead", ("engine",))):
        overhead = _overhead(
            loaded, engine.overhead or (policy_name if policy_name in OVERHEADS else BARE_OVERHEAD), origin
        )
    server = _params(loaded, policy, options, origin)
    params = _of_rank(loaded, server, spec.dp, origin) if preset else server
    share = spec.gpu_memory_utilization
    if share is None:
        share = (
            preset.memory_share(gpu_memory_bytes, server.model_dump(), placement) if preset else BARE_MEMORY
        )
        if share <= 0:
            with loaded.blame("pools", pool):
                raise ScenarioError(
                    f"{policy_name} would keep {(1 - share) * gpu_memory_bytes / 1e9:.0f} GB free of "
                    f"{gpu_memory_bytes / 1e9:.0f} GB by its own rules (more with dp, and with "
                    "chunked_prefill_size); set gpu_memory_utilization"
                )
    source = f"policy {policy_name}; block size, memory share and overhead assumed as in vLLM"
    return ResolvedEngine(
        spec=engine,
        kind=engine_of(policy, preset.name if preset else policy_name),
        policy=policy,
        params=params,
        block_size=engine.block_size or (preset.block_size(placement) if preset else BARE_BLOCK_SIZE),
        gpu_memory_utilization=share,
        overhead=overhead,
        source=preset.source if preset else source,
        told={name: value for name, value in server if value != getattr(params, name)},
    )


def placement_of(model: ModelSpec | None, sm_arch: int, degrees: Parallelism) -> Placement:
    """Return what engines' defaults depend on: how a model lies on GPUs of that compute capability."""
    placement = Placement(degrees.tp, degrees.pp, degrees.dp, sm_arch=sm_arch)
    if model is None:
        return placement
    return replace(
        placement,
        mla=model.has_mla,
        sparse=model.has_sparse_attention,
        compressed=model.has_compressed,
        architecture=model.architecture,
    )


def check_lengths(loaded: LoadedScenario, pool: int, engine: ResolvedEngine, max_model_len: int) -> None:
    """Refuse settings with which the engine would not start, at the place of the setting."""
    try:
        engine.params.check_lengths(max_model_len)
    except ScenarioError as error:
        own = error.key in loaded.scenario.pools[pool].engine.options
        with loaded.blame(*(("pools", pool, "engine") if own else ("engine",))):
            raise


def component(registry: Registry[type], name: str, members: Sequence[str]) -> type:
    """Return a component; refuses one (found by its dotted path) that lacks what the contract asks for."""
    found = registry.get(name)
    missing = [member for member in members if not hasattr(found, member)]
    if missing:
        raise ScenarioError(f"{registry.kind} {name!r} lacks {', '.join(missing)}")
    return found


def _overhead(loaded: LoadedScenario, name: str, origin: Mapping[str, KeyPath]) -> EngineOverhead:
    """Return named constants, or those of a file (called by its path, so that it is found again)."""
    if not name.endswith((".yaml", ".yml")):
        return overhead_named(name)
    overhead = read_overhead(loaded.file(name, origin.get("overhead", ("engine",))))
    return replace(overhead, name=portable(name, loaded.folder))


def _check_version(
    loaded: LoadedScenario, preset: EnginePreset, options: dict[str, Any], origin: Mapping[str, KeyPath]
) -> None:
    """Refuse a version that contradicts the preset: its other defaults would be the wrong ones."""
    own = preset.version
    if own is not None and options["version"] != own:
        allowed = f"but the preset {preset.name!r} means {own!r}; choose another preset"
        raise refuse(loaded.document, origin["version"], options["version"], allowed)


def _merged(loaded: LoadedScenario, pool: int) -> tuple[EngineSpec, dict[str, KeyPath]]:
    """Return the engine with the pool's overrides, and the path that each key came from."""
    general, own = loaded.scenario.engine.as_mapping(), loaded.scenario.pools[pool].engine.as_mapping()
    if "preset" in own or "policy" in own:
        general = {key: value for key, value in general.items() if key not in ("preset", "policy")}
    origin: dict[str, KeyPath] = {key: ("engine", key) for key in general}
    origin |= {key: ("pools", pool, "engine", key) for key in own}
    return EngineSpec.model_validate({**general, **own}), origin


def _preset(loaded: LoadedScenario, engine: EngineSpec, origin: Mapping[str, KeyPath]) -> EnginePreset | None:
    if engine.preset is None:
        return None
    with loaded.blame(*origin["preset"]):
        return engine_preset(engine.preset)


def _of_rank(
    loaded: LoadedScenario, server: PolicyParams, dp: int, origin: Mapping[str, KeyPath]
) -> PolicyParams:
    """Return an attention rank's share of the server's settings."""
    try:
        return server.of_rank(dp)
    except ScenarioError as error:
        with loaded.blame(*origin.get(error.key, ("engine",))):
            raise


def _params(
    loaded: LoadedScenario, policy: type[Scheduler], options: dict[str, Any], origin: Mapping[str, KeyPath]
) -> PolicyParams:
    for option in options.keys() - policy.Params.model_fields.keys():
        reason = policy.Params.why_not(option, options)
        if reason is not None:
            raise refuse(loaded.document, origin[option], options[option], reason)
    try:
        return policy.Params.model_validate(options, strict=True)
    except ValidationError as error:
        raise explain(error, loaded.document, policy.Params, ("engine",), origin, ENGINE_KEYS) from error
