"""simserve in Python: run a scenario or a study, read what is stored, look at it as pandas frames.

    import simserve as ss

    run = ss.run("scenarios/demo.yaml", {"workload.limit": 500})
    run.requests["ttft_ms"].describe()

Everything here is also in `simserve` itself; see docs/python.md.
"""

from simserve import router
from simserve.api.comparison import Comparison, compare
from simserve.api.figures import Figures
from simserve.api.parts import scheduler
from simserve.api.runs import Run, load, load_scenario, run
from simserve.api.studies import Study, capacity, search, size, sweep
from simserve.core import Trace
from simserve.errors import ScenarioError
from simserve.scenario import Scenario
from simserve.workload import load_trace, write_trace

__all__ = [
    "Comparison",
    "Figures",
    "Run",
    "Scenario",
    "ScenarioError",
    "Study",
    "Trace",
    "capacity",
    "compare",
    "load",
    "load_scenario",
    "load_trace",
    "router",
    "run",
    "scheduler",
    "search",
    "size",
    "sweep",
    "write_trace",
]
