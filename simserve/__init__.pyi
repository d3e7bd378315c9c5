from simserve.api import Comparison as Comparison
from simserve.api import Figures as Figures
from simserve.api import Run as Run
from simserve.api import Scenario as Scenario
from simserve.api import ScenarioError as ScenarioError
from simserve.api import Study as Study
from simserve.api import Trace as Trace
from simserve.api import capacity as capacity
from simserve.api import compare as compare
from simserve.api import load as load
from simserve.api import load_scenario as load_scenario
from simserve.api import load_trace as load_trace
from simserve.api import router as router
from simserve.api import run as run
from simserve.api import scheduler as scheduler
from simserve.api import search as search
from simserve.api import size as size
from simserve.api import sweep as sweep
from simserve.api import write_trace as write_trace

__all__: list[str]
__version__: str
