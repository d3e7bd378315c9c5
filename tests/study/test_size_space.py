"""The search for the cheapest deployment against enumeration, and against the memory ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from simserve.deploy.build import slo_of
from simserve.engines.presets import memory_rules
from simserve.errors import ScenarioError
from simserve.hardware import load_gpu
from simserve.metrics.targets import targets_of
from simserve.model import Parallelism, load_model
from simserve.model.memory import memory_ledger
from simserve.model.memory_lines import MemorySettings
from simserve.scenario.load import LoadedScenario, loaded
from simserve.scenario.spec import Scenario
from simserve.study.campaign import Options, campaign
from simserve.study.executors.base import Bench, Task
from simserve.study.layouts import Family, families
from simserve.study.points import summarised
from simserve.study.size import SizeSearch, size_study

REQUESTS = 240


def scenario(
    size: dict[str, Any], rate: float, slo: dict[str, Any], model: str = "llama-3.1-8b"
) -> LoadedScenario:
    return loaded(
        Scenario.model_validate(
            {
                "name": "space",
                "model": model,
                "engine": "vllm-0.33",
                "workload": {
                    "synthetic": {
                        "requests": REQUESTS,
                        "arrivals": {"kind": "poisson", "rate_per_s": rate},
                        "prompt_tokens": {"kind": "constant", "value": 700},
                        "output_tokens": {"kind": "constant", "value": 40},
                    }
                },
                "pools": [{"gpu": "h100_sxm"}],
                "router": "least_outstanding_tokens",
                "slo": slo,
                "seed": 1,
                "size": size,
            }
        )
    )


def enumerated(it: LoadedScenario) -> tuple[float | None, int]:
    """The least price of all deployments that meet the SLO in a whole run, and the requests that it took."""
    spec, bench, targets = it.scenario.size, Bench(it), targets_of(slo_of(it.scenario))
    assert spec is not None
    prices, requests = [], 0
    for family in families(it, spec):
        for units in range(1, spec.replicas + 1):
            outcome = bench.run(Task("", {**family.settings(units), "seed": it.scenario.seed}))
            if outcome.row is None:  # does not fit: no size of the family does
                break
            requests += outcome.row["simulated_requests"]
            if summarised([outcome.row], targets, 2 * spec.confidence - 1)["slo"] == "met":
                prices.append(units * family.price_per_hour)
    return min(prices, default=None), requests


def searched(it: LoadedScenario, folder: Path) -> tuple[dict[str, Any], int]:
    assert it.scenario.size is not None
    with campaign(it, "size", folder, Options(workers=1)) as work:
        search = SizeSearch(work, it.scenario.size)
        search.run()
        return size_study(work, search), work.counts.simulated_requests


SPACES = st.fixed_dictionaries(
    {
        "catalogue": st.fixed_dictionaries(
            {
                "h100_sxm": st.fixed_dictionaries({"price_per_gpu_hour": st.sampled_from([2.0, 2.5, 4.0])}),
                "a100_sxm": st.fixed_dictionaries({"price_per_gpu_hour": st.sampled_from([1.1, 1.9])}),
            }
        ),
        "tp": st.just([1, 2]),
        "replicas": st.sampled_from([6, 8]),
        "engine": st.sampled_from([{}, {"max_num_batched_tokens": [1024, 4096]}]),
    }
)


@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    size=SPACES,
    rate=st.sampled_from([30.0, 70.0, 110.0]),
    ttft_ms=st.sampled_from([80.0, 150.0, 400.0]),
    tpot_ms=st.sampled_from([8.0, 12.0, 30.0]),
)
def test_the_search_finds_what_enumeration_finds_with_a_third_of_the_requests(
    tmp_path_factory: pytest.TempPathFactory,
    size: dict[str, Any],
    rate: float,
    ttft_ms: float,
    tpot_ms: float,
) -> None:
    it = scenario(size, rate, {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "attainment": 0.9})
    study, requests = searched(it, tmp_path_factory.mktemp("size"))
    price, all_requests = enumerated(it)
    found = study["feasible"][0]["price_per_hour"] if study["feasible"] else None
    assert found == (None if price is None else pytest.approx(price))
    assert requests <= all_requests / 3


@settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    model=st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "deepseek-v3", "qwen3-30b-a3b"]),
    gpu=st.sampled_from(["a10", "l40s", "h100_sxm", "h200_sxm", "b200_sxm"]),
    tp=st.sampled_from([1, 2, 3, 4, 8]),
    pp=st.sampled_from([1, 2]),
    weights=st.sampled_from(["bf16", "fp8"]),
    kv=st.sampled_from(["bf16", "fp8"]),
    batched=st.sampled_from([2048, 16384]),
)
def test_what_the_ledger_refuses_is_never_tried(
    model: str, gpu: str, tp: int, pp: int, weights: str, kv: str, batched: int
) -> None:
    """The bound says impossible exactly where the memory ledger, drawn up here by itself, refuses."""
    size = {
        "catalogue": {gpu: {"price_per_gpu_hour": 1.0}},
        "tp": [tp],
        "pp": [pp],
        "weights_dtype": [weights],
        "kv_dtype": [kv],
        "engine": {"max_num_batched_tokens": [batched], "max_num_seqs": [64]},
    }
    it = scenario(size, 1.0, {"e2e_ms": 1e9}, model)
    assert it.scenario.size is not None
    (family,) = families(it, it.scenario.size)
    reason = bound_reason(it, family)
    spec = load_model(model)
    try:
        memory_ledger(
            MemorySettings(
                spec,
                load_gpu(gpu),
                Parallelism(tp=tp, pp=pp),
                weights_dtype=weights,
                kv_dtype=kv,
                block_size=16,
                gpu_memory_utilization=0.92,
                max_num_batched_tokens=batched,
                max_num_seqs=64,
                rules=memory_rules("vllm-0.33"),
            )
        )
        refusal = ""
    except ScenarioError as error:
        refusal = str(error)
    assert bool(reason) == bool(refusal), reason or refusal
    assert reason.partition(" because ")[0] in refusal


def bound_reason(it: LoadedScenario, family: Family) -> str:
    from simserve.deploy.build import Parts
    from simserve.deploy.workload import build_trace
    from simserve.study.bounds import bound, workload_of

    work = workload_of(it, build_trace(it))
    return bound(it, family, Parts(), work, targets_of(slo_of(it.scenario))).impossible


def test_an_slo_that_nobody_can_meet_is_said_with_the_bound(tmp_path: Path) -> None:
    """Llama-3.1-8B on one H100 reads 2 x 6.98e9 bytes of layer weights per step: 4.2 ms at 3.35 TB/s."""
    size = {"catalogue": {"h100_sxm": {"price_per_gpu_hour": 2.0}}, "tp": [1]}
    study, requests = searched(scenario(size, 5.0, {"tpot_ms": 3.0}), tmp_path)
    assert requests == 0
    assert "4.17 ms" in study["impossible"][0]["because"]


def test_what_does_not_fit_says_why_without_a_place_that_nobody_wrote(tmp_path: Path) -> None:
    """`bound` names the pool that it made up: `pools[0].tp: tp = 3 does not divide ...`."""
    size = {"catalogue": {"h100_sxm": {"price_per_gpu_hour": 2.0}}, "tp": [3]}
    study, _ = searched(scenario(size, 5.0, {"ttft_ms": 500.0}), tmp_path)
    assert study["impossible"][0]["because"].startswith("tp = 3 does not divide the 32 attention heads")


def test_what_misses_says_by_how_much(tmp_path: Path) -> None:
    size = {"catalogue": {"h100_sxm": {"price_per_gpu_hour": 2.0}}, "tp": [1], "replicas": 2}
    study, _ = searched(scenario(size, 30.0, {"ttft_ms": 20.0, "attainment": 0.9}), tmp_path)
    assert study["feasible"] == []
    assert study["missed"]
    for one in study["missed"]:
        target = one["targets"][0]
        assert target["low"] < target["share"] == 0.9
        assert one["shortfall"]


def test_a_kind_of_gpu_that_cannot_be_had_in_numbers_is_left_out(tmp_path: Path) -> None:
    size = {"catalogue": {"h100_sxm": {"price_per_gpu_hour": 2.0, "at_most": 1}}, "tp": [2]}
    study, _ = searched(scenario(size, 5.0, {"ttft_ms": 500.0}), tmp_path)
    assert "only 1 GPUs can be had" in study["impossible"][0]["because"]


def test_a_split_can_be_among_the_choices(tmp_path: Path) -> None:
    size = {
        "catalogue": {"h100_sxm": {"price_per_gpu_hour": 2.0}},
        "tp": [1],
        "replicas": 3,
        "layouts": ["aggregated", "split"],
        "ratios": [{"prefill": 1, "decode": 1}, {"prefill": 1, "decode": 2}],
    }
    slo = {"ttft_ms": 400.0, "tpot_ms": 20.0, "attainment": 0.9}
    study, _ = searched(scenario(size, 40.0, slo), tmp_path)
    families = [one["words"] for one in study["families"]]
    assert families == [
        "h100_sxm, aggregated, tp 1",
        "h100_sxm, split 1:1, tp 1",
        "h100_sxm, split 1:2, tp 1",
    ]
    assert study["feasible"]


def test_attention_ranks_with_expert_parallelism_are_found_as_by_enumeration(tmp_path: Path) -> None:
    """Of the four degrees two are deployments: alone, and two ranks that share the experts."""
    size = {
        "catalogue": {"h100_sxm": {"price_per_gpu_hour": 2.0}},
        "tp": [1],
        "dp": [1, 2],
        "ep": [1, 2],
        "replicas": 3,
    }
    slo = {"ttft_ms": 400.0, "tpot_ms": 20.0, "attainment": 0.9}
    it = scenario(size, 12.0, slo, model="qwen3-30b-a3b")
    study, _ = searched(it, tmp_path)
    price, _ = enumerated(it)
    assert study["feasible"][0]["price_per_hour"] == price
    assert {one["words"] for one in study["impossible"]} >= {"h100_sxm, tp 1, dp 1, ep 2"}
    two = next(one for one in study["families"] if one["words"] == "h100_sxm, tp 1, dp 2, ep 2")
    assert (two["gpus_per_unit"], two["price_per_unit_hour"]) == (2, 4.0)
