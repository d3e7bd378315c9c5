"""`simserve schema`: the JSON Schema of scenario files, for completion and checks in editors."""

from __future__ import annotations

import json


def schema() -> None:
    """Print the JSON Schema of scenario files.

    Example, for editors that use the YAML language server: simserve schema > scenario.schema.json
    and put this on the scenario's first line: # yaml-language-server: $schema=scenario.schema.json
    """
    from simserve.scenario.schema import scenario_schema

    print(json.dumps(scenario_schema(), indent=2))
