"""From (model, what drafts for it, GPU, parallelism, dtypes, engine) to steps that verify drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

import numpy as np

from simserve.errors import ScenarioError
from simserve.experts.rank_load import RankMaximum
from simserve.hardware import GpuSpec
from simserve.latency.blocks.plan import Plan, Setting
from simserve.latency.compile import GroupSettings, KernelSettings, distinct_plans, setting_of
from simserve.latency.kernels.gemm import gemm
from simserve.latency.lockstep import Int64, LockstepLatency, RankWork
from simserve.latency.lockstep_totals import StepNote
from simserve.latency.overhead import IDEAL, EngineOverhead, with_measured_launches
from simserve.latency.overlap import NO_OVERRIDES, OverlapSpec, Parts
from simserve.latency.step_time import TableLatency
from simserve.latency.verifying import DraftPasses, VerifyingLatency, graphs_of, with_prompts
from simserve.model.draft import Drafter
from simserve.model.spec import ModelSpec, Parallelism

# Decode steps of ranks that step together and verify drafted tokens.
#
# Follows multi-token prediction as vLLM and SGLang run it: a verification has k + 1 tokens per sequence,
# which
# attend the same cache, touch more experts, fill the exchange and are all sampled; then the draft runs k
# times,
# first over all tokens of the step, then over one per sequence, with its own experts and exchange.


class LockstepDrafts(NamedTuple):
    """The passes of a draft on all ranks, without engine overhead."""

    first: LockstepLatency
    """Over all tokens of the step."""
    rest: LockstepLatency
    """Over one token per sequence."""


class SpeculativeLatency(LockstepLatency):
    """Steps of a group whose sequences verify drafts."""

    def __init__(
        self,
        rank: VerifyingLatency,
        overhead: EngineOverhead,
        ranks: int,
        overlap: OverlapSpec,
        *,
        drafts: LockstepDrafts | None = None,
        estimated: tuple[str, ...] = (),
        solve_us: float = 0.0,
    ) -> None:
        """`rank` prices what a rank computes by itself; without `drafts` these cost nothing."""
        self.queries, self.sampled = rank.queries, rank.sampled
        self._drafts = drafts
        self._passes: tuple[tuple[Int64, StepNote], ...] = ()
        """Of the step that is being priced."""
        graphs = graphs_of(overhead, rank.queries)
        super().__init__(rank, graphs, ranks, overlap, estimated=estimated, solve_us=solve_us)

    def _with_drafts(
        self, kernels_ns: Int64, sequences: Int64, contexts: Int64, maximum: RankMaximum | None
    ) -> Int64:
        drafts, more = self._drafts, self.queries - 2
        if drafts is None:
            return kernels_ns
        passes = [drafts.first.decode_run_ns(sequences, contexts, maximum)]
        if more:
            passes.append(drafts.rest.decode_run_ns(sequences, contexts, maximum))
        return self._noted(kernels_ns, passes)

    def _with_mixed_drafts(
        self,
        kernels_ns: Int64,
        works: Sequence[RankWork],
        sequences: Int64,
        contexts: Int64,
        maximum: RankMaximum | None,
    ) -> Int64:
        drafts, more = self._drafts, self.queries - 2
        if drafts is None:
            return kernels_ns
        first_ns, note = drafts.first.mixed_step_ns(works, sequences, contexts, maximum)
        passes = [(np.array([first_ns], np.int64), note)]
        ready = [with_prompts(work.decodes, work.decode_context, work.chunks) for work in works]
        ready = [(count, context // count) for count, context in ready if count]
        counts = np.array([*[count for count, _ in ready], *sequences.tolist()], np.int64)
        if more and len(counts):
            means = np.array([*[mean for _, mean in ready], *contexts.tolist()], np.int64)
            passes.append(drafts.rest.decode_run_ns(counts, means[:, None], maximum))
        return self._noted(kernels_ns, passes)

    def _noted(self, kernels_ns: Int64, passes: list[tuple[Int64, StepNote]]) -> Int64:
        """Keep the passes for the note on the step; return `kernels_ns` with what they take."""
        self._passes = tuple(passes)
        for (durations_ns, _), times in zip(passes, self._times, strict=False):
            kernels_ns = kernels_ns + times * durations_ns
        return kernels_ns

    @property
    def _times(self) -> tuple[int, int]:
        """How often a step runs each of the passes."""
        return 1, self.queries - 2

    # -- the books ----------------------------------------------------------------------------------------

    def _note(self, parts: Parts, pieces: int, total: int, most: int, rows: Int64) -> StepNote:
        return super()._note(parts, pieces, total, most, rows)._replace(drafts=self._passes)

    def book(self, note: StepNote, steps: int, total_ns: int) -> None:
        """Book the first `steps` of the noted steps, which took `total_ns`."""
        passes = zip(self._drafts or (), self._times, note.drafts, strict=False)
        for one, times, (durations_ns, inner) in passes:
            took_ns = int(durations_ns[:steps].sum())
            one.book(inner, steps, took_ns)
            total_ns -= times * took_ns
        super().book(note, steps, total_ns)

    def step_provenance(self) -> dict[str, float]:
        """Return ns by `PROVENANCE` of all that was booked."""
        found = super().step_provenance()
        for one, times in zip(self._drafts or (), self._times, strict=False):
            found = {name: found[name] + times * ns for name, ns in one.step_provenance().items()}
        return found

    def forget(self) -> None:
        """Drop what was booked so far."""
        super().forget()
        for one in self._drafts or ():
            one.forget()


def compile_verifying_latency(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    drafter: Drafter | None,
    drafts: int,
    *,
    overhead: EngineOverhead,
    **settings: Unpack[KernelSettings],
) -> VerifyingLatency:
    """Compile the step latency of a replica that verifies `drafts` drafts of each sequence.

    `settings` as in `compile_step_latency`; without a drafter, drafts cost nothing on the GPU.
    """
    told = GroupSettings(**settings)
    plan, setting = _plan(spec, gpu, parallelism, overhead, False, told)
    queries, passes, estimated = drafts + 1, None, tuple(setting.machine.estimated)
    if drafter is not None:
        draft_plan, more = _draft_plan(drafter, gpu, parallelism, overhead, False, told)
        first = VerifyingLatency(draft_plan, IDEAL, queries, sampled=1)
        passes = DraftPasses(first, TableLatency(draft_plan, IDEAL), drafts)
        estimated = _joined(estimated, more)
    overhead = with_measured_launches(overhead, setting.machine, plan)
    return VerifyingLatency(plan, overhead, queries, drafts=passes, estimated=estimated)


def compile_speculative_latency(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    drafter: Drafter | None,
    drafts: int,
    *,
    overlap: OverlapSpec = NO_OVERRIDES,
    solve_us: float = 0.0,
    overhead: EngineOverhead,
    **settings: Unpack[GroupSettings],
) -> SpeculativeLatency:
    """Compile the step times of a group whose ranks verify drafts (see `compile_lockstep_latency`)."""
    plan, setting = _plan(spec, gpu, parallelism, overhead, True, settings)
    queries, passes, estimated = drafts + 1, None, tuple(setting.machine.estimated)
    ranks = parallelism.dp
    if drafter is not None:
        draft_plan, more = _draft_plan(drafter, gpu, parallelism, overhead, True, settings)
        first = VerifyingLatency(draft_plan, IDEAL, queries, sampled=1)
        passes = LockstepDrafts(
            SpeculativeLatency(first, IDEAL, ranks, overlap),
            LockstepLatency(TableLatency(draft_plan, IDEAL), IDEAL, ranks, overlap),
        )
        estimated = _joined(estimated, more)
    rank = VerifyingLatency(plan, IDEAL, queries)
    overhead = with_measured_launches(overhead, setting.machine, plan)
    return SpeculativeLatency(
        rank, overhead, ranks, overlap, drafts=passes, estimated=estimated, solve_us=solve_us
    )


def _draft_plan(
    drafter: Drafter,
    gpu: GpuSpec,
    parallelism: Parallelism,
    overhead: EngineOverhead,
    lockstep: bool,
    settings: GroupSettings,
) -> tuple[Plan, tuple[str, ...]]:
    """Return the kernels of a draft's pass, and what of them is estimated."""
    if drafter.owns_ends:
        settings = settings | {"experts_dtype": None, "moe_backend": None, "redundant_experts": 0}
    plan, setting = _plan(drafter.spec, gpu, parallelism, overhead, lockstep, settings)
    if drafter.projected:
        hidden, dtype = drafter.spec.hidden_size, setting.activation_dtype
        plan.add([gemm(setting.machine, "draft projection", dtype, hidden, drafter.projected * hidden)], 1)
    return plan, tuple(setting.machine.estimated)


def _plan(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    overhead: EngineOverhead,
    lockstep: bool,
    settings: GroupSettings,
) -> tuple[Plan, Setting]:
    if parallelism.pp > 1:
        raise ScenarioError("cannot be combined with speculation", "pp", parallelism.pp, "1")
    setting = setting_of(spec, gpu, parallelism, engine=overhead.kernels, lockstep=lockstep, **settings)
    (plan,) = distinct_plans(spec, setting)
    return plan, setting


def _joined(target: tuple[str, ...], draft: tuple[str, ...]) -> tuple[str, ...]:
    return target + tuple(f"draft: {line}" for line in draft if line not in target)
