"""Prompts on some replicas, answers on others, in each of the ratios that are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from simserve.scenario.load import LoadedScenario
from simserve.scenario.study_spec import SizeSpec
from simserve.study.layouts import LAYOUTS, Choices, Settings, pool_of, ratio_words, shown


@LAYOUTS.register("split")
def split(
    it: LoadedScenario, spec: SizeSpec, choices: Choices
) -> Iterator[tuple[Choices, list[Settings], Settings]]:
    """A pool of each role; KV moves as the scenario's `transfer` says, or by its defaults."""
    keys = {} if "transfer" in it.document.data else {"transfer": {"link": "rdma_400g"}}
    for ratio in spec.ratios:
        pools = [
            pool_of(it, spec, choices, name=role, role=role, replicas=getattr(ratio, role))
            for role in ("prefill", "decode")
        ]
        yield {"layout": f"split {ratio_words(ratio)}", **shown(spec, choices)}, pools, keys
