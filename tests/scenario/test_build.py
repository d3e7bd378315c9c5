"""Wiring: engine defaults, overrides, memory limits, workload steps, sharing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.deploy.build import Deployment, build, run_scenario
from simserve.deploy.manifest import resolved_yaml
from simserve.errors import ScenarioError
from simserve.scenario import Scenario, load_scenario
from simserve.scenario.load import loaded

Write = Callable[..., Path]


def deployment(path: Path, *options: str) -> Deployment:
    return build(load_scenario(path, options))


@pytest.mark.parametrize(
    ("gpu", "tokens", "sequences"),
    [  # vLLM's defaults for its API server: by memory, and the A100 apart
        ("b200_sxm", 16384, 1024),
        ("h200_sxm", 8192, 1024),
        ("h100_sxm", 8192, 1024),
        ("a100_sxm", 2048, 256),
        ("l40s", 2048, 256),
    ],
)
def test_the_versions_defaults_follow_the_gpu(
    scenario_file: Write, gpu: str, tokens: int, sequences: int
) -> None:
    options = deployment(scenario_file(), f"pools.0.gpu={gpu}").pools[0].engine.options
    assert options["max_num_batched_tokens"] == tokens
    assert options["max_num_seqs"] == sequences


def test_a_pools_option_wins_over_the_scenarios_over_the_versions(scenario_file: Write) -> None:
    path = scenario_file(
        ("engine: vllm-0.33", "engine: {preset: vllm-0.33, max_num_seqs: 10, watermark: 0.1}"),
        ("gpu: h100_sxm", "gpu: h100_sxm\n    engine: {max_num_seqs: 20}\n  - {name: b, gpu: h100_sxm}"),
    )
    first, second = deployment(path).pools
    assert (first.engine.options["max_num_seqs"], second.engine.options["max_num_seqs"]) == (20, 10)
    assert first.engine.options["watermark"] == second.engine.options["watermark"] == 0.1
    assert first.engine.options["enable_chunked_prefill"] is True


def test_a_pool_may_run_another_engine(scenario_file: Write) -> None:
    path = scenario_file(
        ("gpu: h100_sxm", "gpu: h100_sxm\n    engine: vllm-0.19\n  - {name: b, gpu: h100_sxm}")
    )
    first, second = deployment(path).pools
    assert (first.engine.label, second.engine.label) == ("vllm-0.19", "vllm-0.33")
    assert (first.engine.gpu_memory_utilization, second.engine.gpu_memory_utilization) == (0.90, 0.92)
    assert first.kv_blocks < second.kv_blocks


def test_equal_pools_share_one_step_latency_and_no_policy(scenario_file: Write) -> None:
    path = scenario_file(
        (
            "gpu: h100_sxm",
            "gpu: h100_sxm\n    replicas: 2\n  - {name: b, gpu: h100_sxm}\n  - {name: c, gpu: l40s}",
        )
    )
    built = deployment(path)
    replicas = built.replicas()
    assert [replica.name for replica in replicas] == ["all-0", "all-1", "b-0", "c-0"]
    assert len({id(replica.latency) for replica in replicas}) == 2
    assert len({id(replica.policy) for replica in replicas}) == 4
    assert built.replicas()[0].policy is not replicas[0].policy


def test_the_longest_sequence_is_the_models_if_it_fits(scenario_file: Write) -> None:
    limit = deployment(scenario_file()).pools[0].limit
    assert limit == (131072, "max_position_embeddings of llama-3.1-8b", False)


def test_else_it_is_what_the_pool_holds(scenario_file: Write) -> None:
    pool = deployment(scenario_file(), "pools.0.gpu_memory_utilization=0.3").pools[0]
    assert pool.limit.tokens == pool.kv_blocks * 16 < 131072
    assert pool.limit.reason == (
        f"longest sequence that the KV pool of {pool.kv_blocks:,} blocks of 16 tokens holds"
    )
    # 0.3 of CUDA's 79.1 GiB, less 16.06 GB of weights and some GB of the rest, at 131,072 B per token.
    assert 0 < pool.limit.tokens * 131072 < 0.3 * 79.1 * 2**30 - 16.06e9


def test_one_that_does_not_fit_is_refused_with_numbers(scenario_file: Write) -> None:
    path = scenario_file(("gpu: h100_sxm", "gpu: h100_sxm\n    max_model_len: 100000"))
    with pytest.raises(
        ScenarioError, match=r"small\.yaml:11: .*max_model_len = 100000 tokens needs 13\.11 GB"
    ):
        deployment(path, "pools.0.gpu_memory_utilization=0.3")
    assert deployment(path).pools[0].limit == (100000, "max_model_len of the scenario", True)


def test_a_request_beyond_the_limit_is_refused_with_the_reason(scenario_file: Write) -> None:
    result = deployment(scenario_file(), "pools.0.max_model_len=299").simulate()
    assert (result.status == 1).all()
    assert all("299" in reason for reason in result.reasons)


def test_the_steps_of_the_workload_in_their_order(scenario_file: Write) -> None:
    path = scenario_file()
    whole = deployment(path).trace
    inside = (whole.arrival_ns >= 1e9) & (whole.arrival_ns < 4e9)
    kept = whole.arrival_ns[inside]
    trace = deployment(path, "workload.window_s=[1, 4]", "workload.rate_scale=2", "workload.limit=10").trace
    assert len(trace) == 10
    assert np.abs(trace.arrival_ns - (kept - kept[0])[:10] / 2).max() <= 1


def test_thinning_keeps_a_share_and_the_pace(scenario_file: Write) -> None:
    options = ("workload.synthetic.requests=4000", "workload.rate_scale=0.25", "workload.scale_by=thin")
    whole = deployment(scenario_file(), options[0]).trace
    thinned = deployment(scenario_file(), *options).trace
    assert abs(len(thinned) - 1000) < 4 * np.sqrt(4000 * 0.25 * 0.75)  # binomial, four sigma
    assert set(np.diff(thinned.arrival_ns)) - set(np.diff(whole.arrival_ns))  # gaps have grown
    assert abs(thinned.arrival_ns[-1] / whole.arrival_ns[-1] - 1) < 0.05


@pytest.mark.parametrize(
    ("value", "declared", "produced"), [("exact", 20, 20), ("7", 7, 7), ("100", 100, 20), ("null", None, 20)]
)
def test_the_declared_output_limit(
    scenario_file: Write, value: str, declared: int | None, produced: int
) -> None:
    built = deployment(scenario_file(), f"workload.max_tokens={value}")
    assert built.trace.max_tokens is None if declared is None else (built.trace.max_tokens == declared).all()
    assert (built.simulate().output_tokens == produced).all()


def test_a_closed_loop_ignores_the_recorded_times(scenario_file: Write) -> None:
    result = deployment(scenario_file(), "workload.closed_loop.concurrency=4").simulate()
    arrival, last = np.sort(result.arrival_ns), np.sort(result.last_token_ns)
    assert (arrival[:4] == 0).all()
    assert (arrival[4:] == last[:-4]).all()


def test_a_scenario_made_in_python(scenario_file: Write) -> None:
    scenario = load_scenario(scenario_file()).scenario
    same = Scenario.model_validate(scenario.as_mapping())
    assert same == scenario
    assert (run_scenario(same).last_token_ns == build(loaded(scenario)).simulate().last_token_ns).all()


def test_a_deployment_can_be_run_again(scenario_file: Write) -> None:
    built = deployment(scenario_file())
    first, second = built.simulate(), built.simulate()
    assert (first.last_token_ns == second.last_token_ns).all()
    assert first.provenance_ns == second.provenance_ns


def test_a_scenario_is_frozen(scenario_file: Write) -> None:
    scenario: Any = load_scenario(scenario_file()).scenario
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 4


def test_relative_files_beside_the_scenario_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    beside, elsewhere = tmp_path / "beside", tmp_path / "elsewhere"
    for folder, prompt in ((beside, 11), (elsewhere, 22)):
        (folder / "traces").mkdir(parents=True)
        (folder / "traces" / "chat.csv.gz").write_text(f"{header}2023-11-16 09:00:00.0000000,{prompt},5\n")
    demo = load_scenario("scenarios/demo.yaml").scenario.as_mapping()
    monkeypatch.chdir(elsewhere)

    def prompt_tokens(folder: Path) -> int:
        return int(build(loaded(Scenario.model_validate(demo), folder)).trace.prompt_tokens[0])

    assert prompt_tokens(beside) == 11
    assert prompt_tokens(tmp_path) == 22  # the current folder
    # And the resolved scenario finds the same file again from the current folder.
    resolved = beside / "again.yaml"
    resolved.write_text(resolved_yaml(build(loaded(Scenario.model_validate(demo), beside))))
    resolved = resolved.rename(tmp_path / "again.yaml")
    assert int(build(load_scenario(resolved)).trace.prompt_tokens[0]) == 11
