"""Errors carry what they are about as data: into a sentence, through a process, to the line of a file."""

from __future__ import annotations

import pickle

import pytest
import simpy
from pydantic import ValidationError

from simserve.errors import ScenarioError, SettingError, SeveralErrors, TraceError, UserError, together
from simserve.scenario import load_scenario
from simserve.scenario.document import parse_document
from simserve.scenario.load import LoadedScenario, loaded_mapping
from simserve.scenario.split_spec import RoleSwitchSpec
from tests.places import REPOSITORY

TP = ScenarioError("does not divide 32", "tp", 3, "1, 2, 4")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (UserError("all is wrong"), "all is wrong"),
        (TP, "tp = 3 does not divide 32; allowed: 1, 2, 4"),
        (ScenarioError("", "seqs", 4096, "at most 1,024"), "seqs = 4,096, allowed: at most 1,024"),
        (ScenarioError("needs kv_tiers", "kv_tier_policy"), "kv_tier_policy needs kv_tiers"),
        (SettingError("", "odds", (0.5, 0.4), "one"), "odds = [0.5, 0.4], allowed: one"),
        (TP.at("a.yaml:7", "pools[0].tp"), "a.yaml:7: pools[0].tp = 3 does not divide 32; allowed: 1, 2, 4"),
        (TP.at("a.yaml:3: engine"), "a.yaml:3: engine: tp = 3 does not divide 32; allowed: 1, 2, 4"),
        (TraceError("line 4 is empty", place="t.csv"), "t.csv: line 4 is empty"),
    ],
)  # fmt: skip
def test_the_sentence_names_place_key_value_and_what_is_allowed(error: UserError, sentence: str) -> None:
    assert str(error) == sentence


SEVERAL = SeveralErrors(TP.at("a.yaml:7"), TraceError("bad"))


@pytest.mark.parametrize(
    "error", [TP, TP.at("a.yaml:7", "pools[0].tp"), SettingError("x", "k", (1,)), SEVERAL]
)
def test_errors_come_whole_through_a_process_and_through_simpy(error: UserError) -> None:
    def fail(env: simpy.Environment):
        yield env.timeout(1)
        raise error

    env = simpy.Environment()
    with pytest.raises(UserError) as through_simpy:
        env.run(env.process(fail(env)))
    for one in (pickle.loads(pickle.dumps(error)), through_simpy.value):
        assert type(one) is type(error)
        assert str(one) == str(error)
        assert [(p.key, p.value) for p in one.problems] == [(p.key, p.value) for p in error.problems]


def test_several_are_said_once_each_and_one_stays_itself() -> None:
    assert together([TP, TP]) is TP
    assert together([TP, SEVERAL]).problems == (TP, *SEVERAL.problems)
    assert str(SEVERAL).splitlines() == [str(one) for one in SEVERAL.problems]
    assert [one.place for one in SEVERAL.at("b.yaml").problems] == ["b.yaml", "b.yaml"]


def test_validators_may_raise_a_setting_error() -> None:
    with pytest.raises(ValidationError) as caught:
        RoleSwitchSpec.model_validate({"queue": 2, "idle_queue": 3})
    error = caught.value.errors()[0]["ctx"]["error"]
    assert (error.key, error.value, error.allowed) == ("idle_queue", 3, "less than queue = 2")


PLAIN = """name: x
engine: vllm-0.33
pools:
  - gpu: h100_sxm
    afd:
      ffn_gpus: 3
"""


@pytest.mark.parametrize(
    ("path", "key", "said"),
    [
        (("pools", 0), "gpu", "a.yaml:4: pools[0].gpu = 1 is bad"),
        (("pools", 0, "gpu"), "gpu", "a.yaml:4: pools[0].gpu = 1 is bad"),
        (("pools", 0), "afd.ffn_gpus", "a.yaml:6: pools[0].afd.ffn_gpus = 1 is bad"),
        (("engine",), "max_num_seqs", "a.yaml:2: engine: max_num_seqs = 1 is bad"),
        (("pools", 0), "", "a.yaml:4: pools[0]: is bad"),
    ],
)
def test_an_error_gets_the_line_of_its_key(path: tuple[str | int, ...], key: str, said: str) -> None:
    scenario = load_scenario(REPOSITORY / "scenarios/pd_split.yaml").scenario
    loaded = LoadedScenario(scenario, parse_document(PLAIN, "a.yaml"), REPOSITORY)
    with (
        pytest.raises(ScenarioError) as caught,
        loaded.blame(),
        loaded.blame(*path),
    ):  # the inner place is kept
        raise ScenarioError("is bad", key, 1)
    assert str(caught.value) == said


def test_words_of_a_message_move_no_place() -> None:
    """A sentence that happens to begin like a setting is only a sentence."""
    scenario = load_scenario(REPOSITORY / "scenarios/pd_split.yaml").scenario
    loaded = LoadedScenario(scenario, parse_document(PLAIN, "a.yaml"), REPOSITORY)
    with (
        pytest.raises(ScenarioError, match=r"^a\.yaml:4: pools\[0\]: gpu = 1 is said$"),
        loaded.blame("pools", 0),
    ):
        raise ScenarioError("gpu = 1 is said")


def test_errors_of_a_scenario_from_python_name_the_key() -> None:
    with pytest.raises(UserError) as caught:
        loaded_mapping({"name": "x"})
    assert {one.place for one in caught.value.problems} >= {"scenario: model", "scenario: pools"}
