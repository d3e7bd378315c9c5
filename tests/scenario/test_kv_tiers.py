"""KV tiers of a scenario: what is refused, what is filled in, and that no tiers means no difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from simserve.core import Result
from simserve.deploy.build import build
from simserve.deploy.manifest import resolved_yaml
from simserve.errors import ScenarioError
from simserve.scenario.load import load_scenario
from simserve.workload.cache_curve import cache_curve
from tests.laws.checkers import results_agree

HEAD = """\
name: tiers
model: llama-3.1-8b
engine: vllm-0.33
workload: {trace: traces/long_context.jsonl.gz, limit: 150, rate_scale: 0.3}
pools:
"""
GIB = 1 << 30
KV_BYTES = 131072  # of one token of Llama-3.1-8B, published


def deployment(folder: Path, pool: str, head: str = HEAD):
    path = folder / "scenario.yaml"
    path.write_text(head + f"  - {{gpu: h100_sxm, {pool}}}\n")
    return build(load_scenario(path))


def run(folder: Path, pool: str) -> Result:
    return deployment(folder, pool).simulate()


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ("kv_tiers: [{kind: cpu}]", "exactly one of capacity_gib and capacity_blocks, found none"),
        ("kv_tiers: [{kind: cup, capacity_gib: 1}]", "did you mean 'cpu'"),
        ("kv_tiers: [{kind: cpu, capacity_gib: 1, speed: 3}]", "unknown key 'speed'"),
        ("kv_tiers: [{kind: cpu, capacity_gib: -1}]", "greater than or equal to 0"),
        ("kv_tiers: [{kind: cpu, capacity_gib: 1}], engine: sglang-0.5.23", "block_size is 1, allowed: 16"),
        (
            "kv_tiers: [{kind: cpu, capacity_gib: 1}], "
            "engine: {preset: sglang-0.5.23, block_size: 64, disable_radix_cache: true}",
            "disable_radix_cache: false",
        ),
        (
            "kv_tiers: [{kind: cpu, capacity_gib: 1}], engine: {policy: orca}",
            "engines that can: sglang, vllm",
        ),
        (
            "kv_tiers: [{kind: cpu, capacity_gib: 1}], engine: {enable_prefix_caching: false}",
            "prefix_caching",
        ),
        ("kv_tiers: [{kind: cpu, capacity_gib: 1}], pp: 2", "pp = 2"),
        ("kv_tier_policy: {write: back}", r"pools\[0\].kv_tier_policy needs kv_tiers"),
        (
            "kv_tiers: [{kind: cpu, capacity_gib: 1}], kv_tier_policy: {write: through, inclusive: false}",
            "needs inclusive: true",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(tmp_path: Path, pool: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as error:
        deployment(tmp_path, pool)
    assert "scenario.yaml:6" in str(error.value)


def test_prompts_without_content_are_refused(tmp_path: Path) -> None:
    head = HEAD.replace("long_context.jsonl.gz", "chat.csv.gz")
    with pytest.raises(
        ScenarioError, match=r"scenario.yaml:6: pools\[0\].kv_tiers needs prompts with content"
    ):
        deployment(tmp_path, "kv_tiers: [{kind: cpu, capacity_gib: 1}]", head).simulate()


@pytest.mark.parametrize("tiers", ["kv_tiers: []", "kv_tiers: [{kind: cpu, capacity_gib: 0}]"])
def test_no_tiers_and_empty_tiers_are_the_same(tmp_path: Path, tiers: str) -> None:
    results_agree(run(tmp_path, "tp: 1"), run(tmp_path, tiers), whole=True)


def test_the_resolved_scenario_has_every_figure_and_gives_the_same_result(tmp_path: Path) -> None:
    first = deployment(tmp_path, "tp: 2, kv_tiers: [{kind: cpu, capacity_gib: 20}]")
    text = resolved_yaml(first)
    (tier,) = YAML(typ="safe").load(text)["pools"][0]["kv_tiers"]
    assert tier == {
        "kind": "cpu",
        "capacity_gib": 20,
        "read_gb_s": 52.0,  # achievable on PCIe 5 x16, one link for each of two GPUs
        "write_gb_s": 52.0,
        "links": 2,
        "latency_us": 10.0,
        "shared_by": "replica",
    }
    (tmp_path / "again.yaml").write_text(text)
    again = build(load_scenario(tmp_path / "again.yaml"))
    results_agree(first.simulate(), again.simulate(), whole=True)


def test_more_tiers_find_more_up_to_the_rate_of_the_trace(tmp_path: Path) -> None:
    small, large = "{kind: cpu, capacity_gib: 20}", "{kind: ssd, capacity_gib: 2000, links: 2}"
    none, some, all_of_it = (
        run(tmp_path, f"max_model_len: 131072, kv_tiers: [{tiers}]")
        for tiers in ("", small, f"{small}, {large}")
    )
    found = [result.cached_tokens.sum() for result in (none, some, all_of_it)]
    assert found == sorted(found)
    assert found[0] < found[2]
    (most,) = cache_curve(deployment(tmp_path, "tp: 1").trace, [None], 16).points
    assert found[2] <= most.hit_tokens
    assert found[2] >= 0.95 * most.hit_tokens  # all but what overlapping requests compute twice
    assert np.median(ttft_ns(all_of_it)) < np.median(ttft_ns(none))


def test_sglang_finds_more_below_hbm(tmp_path: Path) -> None:
    """Nearly all that a cache without limit would find in pages of 64 tokens; answers start sooner for it."""
    head = HEAD.replace("vllm-0.33", "{preset: sglang-0.5.23, block_size: 64}")
    tiers = "kv_tiers: [{kind: cpu, capacity_gib: 2000}], kv_tier_policy: {write: through}"
    none, all_of_it = (
        deployment(tmp_path, f"max_model_len: 131072, {pool}", head).simulate() for pool in ("tp: 1", tiers)
    )
    (most,) = cache_curve(deployment(tmp_path, "tp: 1").trace, [None], 64).points
    assert none.cached_tokens.sum() < 0.9 * most.hit_tokens
    assert 0.95 * most.hit_tokens <= all_of_it.cached_tokens.sum() <= most.hit_tokens
    assert np.median(ttft_ns(all_of_it)) < np.median(ttft_ns(none))


def test_bytes_are_those_of_the_model_and_a_slow_link_is_left_alone(tmp_path: Path) -> None:
    fast = run(tmp_path, "max_model_len: 131072, kv_tiers: [{kind: cpu, capacity_gib: 50}]")
    (tier,) = fast.replicas[0].kv_tiers
    assert tier.capacity_blocks == 50 * GIB // (16 * KV_BYTES)
    assert tier.hit_tokens > 0
    assert tier.read_bytes == tier.hit_tokens * KV_BYTES
    slow = "{kind: cpu, capacity_gib: 50, read_gb_s: 0.5, write_gb_s: 52}"  # 4 k tokens/s; a prompt runs 20 k
    (refused,) = run(tmp_path, f"max_model_len: 131072, kv_tiers: [{slow}]").replicas[0].kv_tiers
    assert refused.read_bytes == 0
    assert refused.refused_tokens > 0


def ttft_ns(result: Result) -> np.ndarray:
    return result.first_token_ns - result.arrival_ns
