"""Options of a pool that only models with experts have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from simserve.core import Chunk, Request
from simserve.deploy.build import build
from simserve.deploy.manifest import resolved_yaml
from simserve.deploy.moe import expert_plan
from simserve.errors import ScenarioError
from simserve.hardware import load_gpu
from simserve.model import load_model
from simserve.scenario import load_scenario
from simserve.scenario.pool_spec import PoolSpec
from simserve.scenario.reference import scenario_schema

Write = Callable[..., Path]
QWEN = ("llama-3.1-8b", "qwen3-30b-a3b")
EXPERT_PARAMS = 48 * 128 * 3 * 2048 * 768
"""Of Qwen3-30B-A3B: layers, experts, matrices."""


def built(write: Write, more: str, model: tuple[str, str] = QWEN):
    return build(load_scenario(write(model, ("gpu: h100_sxm", f"gpu: h100_sxm{more}"))))


def test_experts_in_fp8_take_half_the_memory_and_less_time(scenario_file: Write) -> None:
    (plain,) = built(scenario_file, "").pools
    (fp8,) = built(scenario_file, "\n    experts_dtype: fp8").pools
    saved = [pool.ledger.line("routed expert weights").bytes for pool in (plain, fp8)]
    assert saved == [2 * EXPERT_PARAMS, EXPERT_PARAMS]
    assert plain.facts.expert_bytes - fp8.facts.expert_bytes == EXPERT_PARAMS
    assert plain.ledger.line("attention weights") == fp8.ledger.line("attention weights")
    assert fp8.kv_blocks > plain.kv_blocks
    assert fp8.latency.step_ns(64, 64 * 1000, ()) < plain.latency.step_ns(64, 64 * 1000, ())


def test_the_load_of_experts_reaches_the_kernels(scenario_file: Write) -> None:
    """16 tokens with 8 picks touch 128 experts if dealt out, 82 if they pick for themselves."""
    steps = {}
    for load in ("uniform", "balanced", "power_law_1.2"):
        (pool,) = built(scenario_file, f"\n    expert_load: {load}").pools
        steps[load] = pool.latency.step_ns(16, 16 * 1000, ())
    assert steps["uniform"] < steps["balanced"]
    assert len(set(steps.values())) == 3
    (default,) = built(scenario_file, "").pools
    assert default.latency.step_ns(16, 16 * 1000, ()) == steps["uniform"]


def test_the_backend_of_experts_reaches_the_kernels(scenario_file: Write) -> None:
    """gpt-oss-120b on an H200: Marlin reads the same weights as Triton, and multiplies at 0.4 of its rate."""
    prompt = (Chunk(Request(0, 0, 8000, 1), 8000, 0, True),)
    steps = {}
    for backend in ("triton", "marlin"):
        more = f"\n    weights_dtype: mxfp4\n    moe_backend: {backend}"
        (pool,) = built(scenario_file, more, ("llama-3.1-8b", "gpt-oss-120b")).pools
        steps[backend] = pool.latency.step_ns(0, 0, prompt)
        assert f"moe_backend: {backend}" in pool_text(scenario_file, more)
    assert 1.7 < steps["marlin"] / steps["triton"] < 2.5


def pool_text(write: Write, more: str) -> str:
    return resolved_yaml(built(write, more, ("llama-3.1-8b", "gpt-oss-120b")))


def test_a_backend_without_experts_or_without_rows_is_refused(scenario_file: Write) -> None:
    with pytest.raises(ScenarioError, match=r"moe_backend = marlin is not possible: llama-3\.1-8b"):
        built(scenario_file, "\n    moe_backend: marlin", ("llama-3.1-8b", "llama-3.1-8b"))
    with pytest.raises(ScenarioError, match="moe_backend = marlin is in no table of h100_sxm"):
        built(scenario_file, "\n    moe_backend: marlin")


def test_the_resolved_scenario_names_both_and_gives_the_same(scenario_file: Write, tmp_path: Path) -> None:
    first = built(scenario_file, "\n    expert_load: balanced")
    text = resolved_yaml(first)
    pool = YAML(typ="safe").load(text)["pools"][0]
    assert (pool["experts_dtype"], pool["expert_load"]) == ("bf16", "balanced")
    again = tmp_path / "again.yaml"
    again.write_text(text, encoding="utf-8")
    assert resolved_yaml(build(load_scenario(again))) == text


def test_two_pools_with_different_loads_do_not_share_a_latency(scenario_file: Write) -> None:
    more = "\n    expert_load: balanced\n  - name: other\n    gpu: h100_sxm"
    first, second = built(scenario_file, more).pools
    assert first.latency is not second.latency


@pytest.mark.parametrize("option", ["experts_dtype: fp8", "expert_load: balanced"])
def test_a_model_without_experts_refuses_both(scenario_file: Write, option: str) -> None:
    with pytest.raises(ScenarioError, match=r"llama-3\.1-8b has no experts"):
        built(scenario_file, f"\n    {option}", ("seed: 3", "seed: 3"))
    plain = resolved_yaml(built(scenario_file, "", ("seed: 3", "seed: 3")))
    assert "expert" not in plain


@pytest.mark.parametrize(
    ("option", "place", "allowed"),
    [
        ("experts_dtype: fp9", r"pools\[0\].experts_dtype", "fp8"),
        ("expert_load: balancd", r"pools\[0\].expert_load", "balanced"),
    ],
)
def test_mistakes_are_named(scenario_file: Write, option: str, place: str, allowed: str) -> None:
    with pytest.raises(ScenarioError, match=f"{place}.*{allowed}"):
        built(scenario_file, f"\n    {option}")


def test_the_schema_lists_the_loads() -> None:
    pool = scenario_schema()["$defs"]["PoolSpec"]["properties"]
    assert "power_law_1.01" in json.dumps(pool["expert_load"])
    assert "experts_dtype" in pool


RECORDED = "\n    dp: 2\n    ep: 2\n    expert_load: {kind: trace, path: load.csv}"


def test_a_recorded_load_is_found_again_from_elsewhere(
    scenario_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scenario lies beside its recording; the resolved one is run from another folder's file."""
    path = scenario_file(QWEN, ("gpu: h100_sxm", f"gpu: h100_sxm{RECORDED}"))
    rows = [f"0,{layer},{expert},{1 + expert % 7}" for layer in range(48) for expert in range(128)]
    (path.parent / "load.csv").write_text("time_s,layer,expert,count\n" + "\n".join(rows) + "\n")
    monkeypatch.chdir(path.parent)
    first = build(load_scenario(path))
    elsewhere = tmp_path / "result"
    elsewhere.mkdir()
    (elsewhere / "again.yaml").write_text(resolved_yaml(first))
    again = build(load_scenario(elsewhere / "again.yaml"))
    assert first.simulate().end_ns == again.simulate().end_ns
    assert resolved_yaml(again) == resolved_yaml(first)


def test_a_recorded_load_that_is_not_there_is_named(scenario_file: Write) -> None:
    with pytest.raises(ScenarioError, match=r"no file 'load\.csv' beside the scenario"):
        built(scenario_file, RECORDED)


@pytest.mark.parametrize(
    ("placement", "says"),
    [
        ("{redundant_experts: 8, interval_steps: 50}", "interval_steps = 50 with kind contiguous"),
        ("{kind: topology, redundant_experts: 8, per_batch: true}", "per_batch = true with kind topology"),
    ],
)
def test_settings_of_a_placement_that_would_mean_nothing_are_refused(
    scenario_file: Write, placement: str, says: str
) -> None:
    with pytest.raises(ScenarioError, match=says):
        built(scenario_file, f"\n    dp: 8\n    ep: 8\n    placement: {placement}")


@pytest.mark.parametrize("kind", ["eplb", "topology"])
@pytest.mark.parametrize("blocking", [True, False])
def test_a_rebalance_blocks_if_asked_and_keeps_the_kind_of_placement(kind: str, blocking: bool) -> None:
    words = {"kind": kind, "interval_steps": 50, "redundant_experts": 16, "blocking": blocking}
    pool = {"name": "it", "gpu": "h100_sxm", "dp": 16, "ep": 16, "placement": words}
    spec = PoolSpec.model_validate(pool)
    plan = expert_plan(load_model(QWEN[1]), load_gpu("h100_sxm"), spec, 0, Path())
    assert plan is not None
    assert plan.rebalancing is not None
    assert (plan.rebalancing.near, plan.rebalancing.blocking) == (kind == "topology", blocking)
    assert (plan.placement.nodes > 1) == (kind == "topology")
