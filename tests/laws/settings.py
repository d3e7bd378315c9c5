"""How the laws are tried: over every world, on a few dozen workloads each, the same ones in every run."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.laws.world import name_of, worlds

every_world = pytest.mark.parametrize("world", worlds(), ids=name_of)
few = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],  # examples are small already, shrinking them takes minutes
)
fewer = settings(few, max_examples=8)
