"""A pool's speculative decoding, built: scheduler, draft, its memory and step times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simserve.core.batch import Drafting
from simserve.core.request import Acceptance
from simserve.deploy.engine import ResolvedEngine
from simserve.engines.base import DraftingEngine
from simserve.errors import ScenarioError
from simserve.hardware import GpuSpec
from simserve.latency.lockstep import LockstepLatency
from simserve.latency.spec_decode import compile_speculative_latency, compile_verifying_latency
from simserve.latency.step_time import TableLatency
from simserve.model import ModelSpec, Parallelism, load_model
from simserve.model.draft import Drafter, DraftMemory, draft_memory, drafter_of
from simserve.scenario.load import find
from simserve.scenario.pool_spec import PoolSpec
from simserve.scenario.split_spec import SpeculationSpec


@dataclass(frozen=True)
class Speculation:
    """What drafts for a pool, and how its scheduler and its draws go about it."""

    spec: SpeculationSpec
    engine: DraftingEngine
    drafter: Drafter | None
    """None: nothing runs on the GPU."""
    acceptance: Acceptance
    drafting: Drafting
    memory: DraftMemory | None

    def policy(self, role: str) -> type:
        """Return the scheduler of a replica with that role."""
        return self.engine.whole if role == "mixed" else self.engine.decode

    @property
    def step_slots(self) -> int:
        """KV slots that the first step of a sequence takes beside its prompt."""
        return self.drafting.width + self.drafting.lookahead

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted, in words."""
        spec, chances = self.spec, self.acceptance.probabilities
        by = "n-grams, at no cost" if self.drafter is None else self.drafter.words
        given = ", ".join(f"{chance:.3g}" for chance in chances)
        inverted = "" if spec.acceptance_length is None else " (the same for each, from acceptance_length)"
        mean = f"{self.acceptance.mean_tokens:.3g} tokens per step in the mean"
        return (
            f"speculation {spec.method}: {spec.num_speculative_tokens} drafts per step by {by}; {mean}, each "
            f"accepted with {given} if all before were{inverted}, drawn by request and step",
            f"speculation follows {self.engine.source}; {self.drafting.lookahead} more KV slots per sequence "
            "than are scheduled",
        )


def speculation_of(
    spec: PoolSpec, model: ModelSpec, engine: ResolvedEngine, seed: int, folder: Path
) -> Speculation | None:
    """Return the speculation of a pool; raises `ScenarioError` for what it cannot go with."""
    asked = spec.speculation
    if asked is None:
        return None
    drafting = _engine(engine)
    drafter = drafter_of(model, asked.method, _small(asked, folder))
    parallel = Parallelism(tp=spec.tp, dp=spec.dp, ep=spec.ep)
    memory = None
    if drafter is not None:
        memory = draft_memory(
            drafter,
            parallel if drafter.spec.num_layers and not drafter.owns_ends else replace(parallel, ep=1),
            weights_dtype=spec.weights_dtype,
            kv_dtype=spec.kv_dtype,
            experts_dtype=None if drafter.owns_ends else spec.experts_dtype,
            redundant_experts=spec.placement.redundant_experts if spec.placement else 0,
        )
    acceptance = asked.drawn(seed)
    how = drafting.drafting(engine.params, asked.method, acceptance, spec.role == "decode")
    return Speculation(asked, drafting, drafter, acceptance, how, memory)


def speculating(engine: ResolvedEngine, spec: PoolSpec) -> ResolvedEngine:
    """Return the engine with the settings that it starts with when it speculates."""
    if spec.speculation is None:
        return engine
    return replace(engine, params=_engine(engine).settings(engine.params, spec.speculation.method))


def plain_latency(
    speculation: Speculation, model: ModelSpec, gpu: GpuSpec, parallel: Parallelism, **settings: Any
) -> TableLatency:
    """Return the step times of a replica (arguments as in `compile_step_latency`)."""
    drafts = speculation.spec.num_speculative_tokens
    return compile_verifying_latency(model, gpu, parallel, speculation.drafter, drafts, **settings)


def group_latency(
    speculation: Speculation, model: ModelSpec, gpu: GpuSpec, parallel: Parallelism, **settings: Any
) -> LockstepLatency:
    """Return the step times of a group (arguments as in `compile_lockstep_latency`)."""
    drafts = speculation.spec.num_speculative_tokens
    return compile_speculative_latency(model, gpu, parallel, speculation.drafter, drafts, **settings)


def _engine(engine: ResolvedEngine) -> DraftingEngine:
    """Return how an engine speculates; `combinations.check_pool` has refused those that do not."""
    assert engine.kind.spec_decode is not None
    return engine.kind.spec_decode


def _small(asked: SpeculationSpec, folder: Path) -> ModelSpec | None:
    if asked.model is None:
        return None
    if not (asked.model.endswith(".json") or (folder / asked.model).is_dir()):
        try:
            return load_model(asked.model)
        except ScenarioError as error:
            raise ScenarioError(f"speculation.model: {error}") from error
    path = find(asked.model, folder)
    if path is None:
        raise ScenarioError(f"speculation.model: no file {asked.model!r} beside the scenario or here")
    return load_model(str(path))
