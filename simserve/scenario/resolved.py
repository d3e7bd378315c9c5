"""The scenario with every option filled in, as YAML that gives the same result when it is run."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from simserve import __version__
from simserve.scenario.files import portable
from simserve.scenario.pool import BuiltPool

if TYPE_CHECKING:
    from simserve.scenario.build import Deployment


def resolved_yaml(deployment: Deployment) -> str:
    """Return the resolved scenario of a deployment, with the defaults of its engine version."""
    yaml = YAML()
    yaml.width = 110
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = StringIO()
    text.write(
        f"# Every option of the run, as simserve {__version__} understood it. Relative files are looked up\n"
    )
    text.write(
        "# beside this file, then in the folder where simserve is started, then in the data that ships.\n"
    )
    yaml.dump(_resolved(deployment), text)
    return text.getvalue()


def _resolved(deployment: Deployment) -> dict[str, Any]:
    folder = deployment.loaded.folder
    scenario = deployment.loaded.scenario
    plain = scenario.model_dump(mode="json", exclude_none=True)
    plain["model"] = portable(scenario.model, folder)
    plain["engine"] = scenario.engine.as_mapping()
    plain["workload"] = _workload(deployment, plain["workload"])
    plain["pools"] = [_pool(pool) for pool in deployment.pools]
    plain["router"] = {"kind": scenario.router.kind, **scenario.router.options}
    plain["profiles"] = [portable(name, folder) for name in scenario.profiles]
    return plain


def _workload(deployment: Deployment, plain: dict[str, Any]) -> dict[str, Any]:
    if "trace" in plain:
        plain["trace"] = portable(plain["trace"], deployment.loaded.folder)
        plain["format"] = deployment.trace.origin.format
    return plain


def _pool(pool: BuiltPool) -> dict[str, Any]:
    plain = pool.spec.model_dump(mode="json", exclude_none=True)
    plain["engine"] = pool.engine.as_mapping()
    plain["max_model_len"] = pool.limit.tokens
    plain["gpu_memory_utilization"] = pool.engine.gpu_memory_utilization
    return plain
