"""Components by name, and a user's own by dotted path from a scenario, with no edit in simserve."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.core import Request
from simserve.deploy.build import build
from simserve.engines.base import POLICIES
from simserve.errors import ScenarioError
from simserve.registry import Registry
from simserve.router.base import ROUTERS, RouterParams
from simserve.scenario import Scenario
from tests.tiny import tiny_mapping

SCENARIO = tiny_mapping(
    name="own parts",
    requests=30,
    rate_per_s=20,
    prompt=200,
    output=10,
    pool="{name: all, gpu: h100_sxm, replicas: 3}",
)

OWN = '''
from pydantic import Field
from simserve.engines.orca import OrcaPolicy
from simserve.router.base import Router, RouterParams


class PinnedParams(RouterParams):
    target: int = Field(default=0, ge=0)


class Pinned(Router):
    """Everything to one replica."""

    Params = PinnedParams

    def __init__(self, params, *, seed):
        self._target = params.target

    def choose(self, request, targets, now_ns):
        return self._target


class OneAtATime(OrcaPolicy):
    """Orca with a single slot, whatever is asked for."""

    def __init__(self, params, **settings):
        super().__init__(params.model_copy(update={"max_num_seqs": 1}), **settings)


class Useless:
    Params = RouterParams
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_parts"


def test_a_router_by_dotted_path(own: str) -> None:
    router = {"kind": f"{own}:Pinned", "target": 2}
    result = build(Scenario.model_validate({**SCENARIO, "router": router})).simulate()
    assert set(result.replica.tolist()) == {2}


def test_its_settings_are_validated(own: str) -> None:
    router = {"kind": f"{own}:Pinned", "targett": 2}
    with pytest.raises(ScenarioError, match=r"router\.targett: .*did you mean 'target'"):
        build(Scenario.model_validate({**SCENARIO, "router": router}))


def test_a_policy_by_dotted_path(own: str) -> None:
    engine = {"policy": f"{own}:OneAtATime"}
    result = build(Scenario.model_validate({**SCENARIO, "engine": engine})).simulate()
    assert max(replica.timeline.running.max() for replica in result.replicas) == 1


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("own_parts:Useless", "lacks add, next_batch, update"),
        ("own_parts:Absent", "cannot import policy 'own_parts:Absent'"),
        ("no_such_module_at_all:X", "cannot import policy"),
    ],
)
def test_what_is_no_policy(own: str, engine: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        build(Scenario.model_validate({**SCENARIO, "engine": {"policy": engine}}))


def test_an_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"did you mean 'orca'.*known: .*static"):
        POLICIES.get("orka")


def test_a_name_is_given_once() -> None:
    registry: Registry[type] = Registry("thing", "simserve.core")
    registry.register("one")(int)
    with pytest.raises(ScenarioError, match="registered twice"):
        registry.register("one")(str)


@pytest.mark.parametrize("name", list(ROUTERS))
def test_every_router_stays_in_range_and_repeats_itself(name: str) -> None:
    class Target:
        outstanding_requests = 1
        waiting_requests = 0
        running_requests = 1
        block_size = 16
        kv_blocks = 100
        max_num_batched_tokens = 2048

        def outstanding_tokens(self, now_ns: int) -> int:
            return 10

        def kv_use(self, now_ns: int) -> float:
            return 0.5

        def cached_tokens(self, request: Request, now_ns: int) -> int:
            return 0

        def cached_below(self, request: Request, now_ns: int) -> dict[str, int]:
            return {}

    def choices() -> list[int]:
        router = ROUTERS.get(name)(ROUTERS.get(name).Params(), seed=5)
        targets = [Target() for _ in range(3)]
        return [router.choose(Request(i, i, 10, 10), targets, i) for i in range(50)]

    first = choices()
    assert issubclass(ROUTERS.get(name).Params, RouterParams)
    assert set(first) <= {0, 1, 2}
    assert first == choices()
