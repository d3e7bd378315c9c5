"""Scenarios: what a user writes, validated once, and wired into a deployment that can be simulated."""

from simserve.scenario.build import Deployment, build, build_all, run_scenario
from simserve.scenario.load import LoadedScenario, load_scenario
from simserve.scenario.spec import Scenario, SloSpec

__all__ = [
    "Deployment",
    "LoadedScenario",
    "Scenario",
    "SloSpec",
    "build",
    "build_all",
    "load_scenario",
    "run_scenario",
]
