"""What limits a pool, on small deployments of which the limit is planted."""

from __future__ import annotations

import pytest

from simserve.core import WaitReason
from simserve.deploy.build import build
from simserve.metrics.bottlenecks import Limit
from simserve.scenario import load_scenario


def limit_of(path) -> tuple[Limit, float]:
    """What limits the only pool, and the finished requests per second of its run."""
    deployment = build(load_scenario(path))
    summary = deployment.summarize(deployment.simulate())
    (found,) = summary.limits
    assert sum(found.waits.values()) == pytest.approx(1.0)
    assert set(found.waits) <= {reason.words for reason in WaitReason}
    if found.step_time:
        assert sum(found.step_time.values()) == pytest.approx(1.0)
    rate = summary.whole.requests_per_s
    assert rate is not None
    return found, rate


OVERLOAD = ("requests: 40", "requests: 400"), ("rate_per_s: 8", "rate_per_s: 400")


@pytest.mark.parametrize(
    "engine", ["{preset: vllm-0.33, max_num_seqs: 8}", "{preset: sglang-0.5.23, max_running_requests: 8}"]
)
def test_few_slots_are_named_and_twice_of_them_bring_much(scenario_file, engine: str) -> None:
    few = scenario_file(*OVERLOAD, ("engine: vllm-0.33", f"engine: {engine}"))
    found, rate = limit_of(few)
    assert found.resource == "scheduler slots"
    assert max(found.waits, key=lambda words: found.waits[words]) == "scheduler slots"
    more = scenario_file(*OVERLOAD, ("engine: vllm-0.33", f"engine: {engine.replace('8}', '16}')}"))
    assert limit_of(more)[1] > 1.2 * rate


def test_an_overloaded_pool_whose_steps_grow_is_limited_by_its_steps(scenario_file) -> None:
    """Long prompts fill the steps with compute; twice the slots or budget make them longer, not better."""
    long = ("value: 300", "value: 4000")
    found, rate = limit_of(scenario_file(*OVERLOAD, long))
    assert found.resource == "compute"
    assert found.waited > 0.5
    more = ("engine: vllm-0.33", "engine: {preset: vllm-0.33, max_num_batched_tokens: 16384}")
    assert limit_of(scenario_file(*OVERLOAD, long, more))[1] < 1.2 * rate


def test_70b_on_16_gpus_of_two_nodes_names_communication(scenario_file) -> None:
    wide = ("llama-3.1-8b", "llama-3.1-70b"), ("gpu: h100_sxm", "gpu: h100_sxm\n    tp: 16")
    found, _ = limit_of(scenario_file(*OVERLOAD, *wide))
    assert found.resource == "links/communication"
    assert found.step_time["links/communication"] > 0.5


def test_four_replicas_without_a_queue_are_limited_by_nothing(scenario_file) -> None:
    load = ("requests: 40", "requests: 300"), ("rate_per_s: 8", "rate_per_s: 10")
    found, _ = limit_of(
        scenario_file(
            *load, ("value: 20}", "value: 200}"), ("gpu: h100_sxm", "gpu: h100_sxm\n    replicas: 4")
        )
    )
    assert found.resource == "nothing"
    assert found.times_load is not None
    assert found.times_load >= 2
    assert "by estimate, at least" in found.evidence


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ((), 5),
        ((), 12),
        ((("engine: vllm-0.33", "engine: sglang-0.5.23"),), 5),
        ((("gpu: h100_sxm", "gpu: h100_sxm\n    replicas: 4"),), 10),
        ((("llama-3.1-8b", "llama-3.1-70b"), ("gpu: h100_sxm", "gpu: h100_sxm\n    tp: 16")), 3),
    ],
    ids=["vllm", "vllm, half full", "sglang", "four replicas", "two nodes"],
)
def test_as_much_load_fits_as_is_said(scenario_file, changes, rate: int) -> None:
    """What an overloaded server completes per second is the load that fits."""
    shape = ("value: 300", "value: 1000"), ("value: 20}", "value: 200}"), ("requests: 40", "requests: 800")
    found, _ = limit_of(scenario_file(*changes, *shape, ("rate_per_s: 8", f"rate_per_s: {rate}")))
    assert found.resource == "nothing"
    _, most = limit_of(scenario_file(*changes, *shape, ("rate_per_s: 8", "rate_per_s: 400")))
    assert found.times_load is not None
    assert 0.5 * most / rate <= found.times_load <= most / rate


@pytest.mark.parametrize(
    ("shape", "shares", "is_kv"),
    [
        # steps that read much KV: a larger batch makes them longer
        ((("value: 300", "value: 2000"), ("value: 20}", "value: 400}")), (0.5, 0.79), False),
        # room for some 25 requests beside the weights: a larger batch costs next to nothing
        ((("value: 300", "value: 300"), ("value: 20}", "value: 200}")), (0.24, 0.2535), True),
    ],
)
def test_kv_capacity_is_named_only_if_twice_the_blocks_bring_a_fifth(
    scenario_file, shape, shares, is_kv: bool
) -> None:
    rates, blocks = [], []
    for share in shares:
        pool = ("gpu: h100_sxm", f"gpu: h100_sxm\n    gpu_memory_utilization: {share}")
        path = scenario_file(
            *shape, pool, ("requests: 40", "requests: 800"), ("rate_per_s: 8", "rate_per_s: 60")
        )
        found, rate = limit_of(path)
        if not rates:
            assert found.admission == "KV capacity"
            assert max(found.waits, key=lambda words: found.waits[words]) == "KV blocks"
            assert (found.resource == "KV capacity") == is_kv
        rates.append(rate)
        blocks.append(build(load_scenario(path)).pools[0].kv_blocks)
    assert blocks[1] / blocks[0] == pytest.approx(2, rel=0.1)
    assert (rates[1] / rates[0] > 1.2) == is_kv


def test_decoding_many_short_contexts_is_limited_by_hbm_bandwidth(scenario_file) -> None:
    decodes = ("value: 300", "value: 100"), ("value: 20}", "value: 500}"), ("requests: 40", "requests: 800")
    found, _ = limit_of(scenario_file(*decodes, ("rate_per_s: 8", "rate_per_s: 100")))
    assert (found.resource, found.step) == ("HBM bandwidth", "HBM bandwidth")


def test_a_small_model_without_overlap_spends_its_steps_on_the_host(scenario_file) -> None:
    """Kernels of 0.6 billion parameters take less than a millisecond, the gap between steps takes 11.3 ms."""
    engine = "{preset: sglang-0.5.23, overhead: scenarios/overheads/sglang-no-overlap.yaml}"
    small = ("llama-3.1-8b", "qwen3-0.6b"), ("engine: vllm-0.33", f"engine: {engine}")
    found, _ = limit_of(scenario_file(*small))
    assert found.step == "launches and host"
    assert found.step_time["launches and host"] > 0.8
