"""Every replica computes prompts and answers."""

from __future__ import annotations

from collections.abc import Iterator

from simserve.scenario.load import LoadedScenario
from simserve.scenario.study_spec import SizeSpec
from simserve.study.layouts import LAYOUTS, OF_A_SPLIT, Choices, Settings, pool_of, shown


@LAYOUTS.register("aggregated")
def aggregated(
    it: LoadedScenario, spec: SizeSpec, choices: Choices
) -> Iterator[tuple[Choices, list[Settings], Settings]]:
    """One pool."""
    said = shown(spec, choices)
    chosen = {"layout": "aggregated", **said} if len(spec.layouts) > 1 else said
    pool = pool_of(it, spec, choices, name="all", role="mixed", replicas=1)
    yield chosen, [pool], {key: None for key in OF_A_SPLIT if key in it.document.data}
