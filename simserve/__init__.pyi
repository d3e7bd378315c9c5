from simserve.api import Run as Run
from simserve.api import Scenario as Scenario
from simserve.api import ScenarioError as ScenarioError
from simserve.api import load as load
from simserve.api import run as run

__version__: str
