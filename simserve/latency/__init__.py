"""How long a step takes: measured kernel tables, the predictor between them, and what is built from both."""

from simserve.latency.base import PAGE, PROVENANCE, StepLatency
from simserve.latency.compile import compile_step_latency
from simserve.latency.explain import OpTime, explain_step
from simserve.latency.overhead import IDEAL as IDEAL_OVERHEAD
from simserve.latency.overhead import EngineOverhead
from simserve.latency.step_time import TableLatency
from simserve.latency.tables.profiles import ProfileStore, shipped_profiles

__all__ = [
    "IDEAL_OVERHEAD",
    "PAGE",
    "PROVENANCE",
    "EngineOverhead",
    "OpTime",
    "ProfileStore",
    "StepLatency",
    "TableLatency",
    "compile_step_latency",
    "explain_step",
    "shipped_profiles",
]
