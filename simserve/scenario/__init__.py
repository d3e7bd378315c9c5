"""Scenarios: what a user writes, validated once, and wired into a deployment that can be simulated."""

from simserve.scenario.load import LoadedScenario, load_scenario
from simserve.scenario.spec import Scenario, SloSpec

__all__ = [
    "LoadedScenario",
    "Scenario",
    "SloSpec",
    "load_scenario",
]
