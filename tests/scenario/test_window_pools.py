"""Models with sliding windows in a scenario: what is grouped, what is said, and what it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.core import Status
from simserve.deploy.build import Deployment, build
from simserve.deploy.manifest import resolved_yaml
from simserve.errors import ScenarioError
from simserve.scenario.load import load_scenario
from tests.laws.checkers import results_agree

GROUP_BLOCK_BYTES = 18 * 2 * 4 * 64 * 2 * 16
"""gpt-oss-120b on two GPUs: 18 layers, keys and values of 4 heads of 64 in bf16, 16 tokens."""


def deployment(
    folder: Path, engine: str = "preset: vllm-0.33", pool: str = "", limit: int = 60
) -> Deployment:
    path = folder / "scenario.yaml"
    path.write_text(
        "name: windows\nmodel: gpt-oss-120b\n"
        f"engine: {{{engine}}}\n"
        f"workload: {{trace: traces/long_context.jsonl.gz, limit: {limit}, rate_scale: 0.3}}\n"
        f"pools: [{{gpu: h100_sxm, tp: 2, weights_dtype: fp8, max_model_len: 131072{pool}}}]\n"
    )
    return build(load_scenario(path))


def test_two_groups_share_the_pool(tmp_path: Path) -> None:
    (pool,) = deployment(tmp_path).pools
    assert pool.ledger.kv_groups is not None
    assert pool.ledger.kv_groups.windows == (128, 0)  # the first layer slides
    assert pool.kv_blocks == pool.ledger.kv_bytes // GROUP_BLOCK_BYTES - 1
    assert any("1 of full attention and 1 of a window of 128 tokens" in line for line in pool.assumptions)


@pytest.mark.parametrize(
    ("engine", "more", "why"),
    [
        ("preset: vllm-0.33, disable_hybrid_kv_cache_manager: true", "", "disable_hybrid_kv_cache_manager"),
        ("preset: vllm-0.33", ", kv_tiers: [{kind: cpu, capacity_gib: 1}]", "KV tiers"),
        ("preset: vllm-0.33", ", pp: 2", "pipeline stages"),
        ("preset: sglang-0.5.23", "", "no pools for windows"),
    ],
)
def test_where_windows_keep_everything_it_is_said(tmp_path: Path, engine: str, more: str, why: str) -> None:
    (pool,) = deployment(tmp_path, engine, more).pools
    assert pool.ledger.kv_groups is None
    assert any(line.startswith("window and chunk layers keep") and why in line for line in pool.assumptions)


def test_an_odd_interval_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="prefix_cache_retention_interval = 24, allowed: multiples of"):
        deployment(tmp_path, "preset: vllm-0.33, prefix_cache_retention_interval: 24")


@pytest.mark.parametrize("version", ["vllm-0.33", "vllm-0.19", "vllm-0.15"])
def test_windows_given_back_leave_more_room(tmp_path: Path, version: str) -> None:
    """The same requests hold fewer bytes: a long one keeps 128 of its tokens in half of the layers."""
    slides = deployment(tmp_path, f"preset: {version}")
    whole = deployment(tmp_path, f"preset: {version}, disable_hybrid_kv_cache_manager: true")
    one, other = slides.simulate(), whole.simulate()
    assert (one.status == Status.COMPLETED).all()
    used = [
        (result.replicas[0].timeline.kv_used_blocks / result.replicas[0].kv_blocks).max()
        for result in (one, other)
    ]
    assert 0.4 < used[0] / used[1] < 0.7


def test_keeping_all_window_blocks_finds_what_full_layers_find(tmp_path: Path) -> None:
    """Nearly all that full layers have is found if windows keep everything, as in 0.19; less by default."""
    found = {
        name: int(deployment(tmp_path, options, limit=80).simulate().cached_tokens.sum())
        for name, options in {
            "whole": "preset: vllm-0.33, disable_hybrid_kv_cache_manager: true",
            "all": "preset: vllm-0.33, prefix_cache_retention_interval: all",
            "old": "preset: vllm-0.19",
            "default": "preset: vllm-0.33",
        }.items()
    }
    assert 0 < found["default"] < found["all"] <= found["whole"]
    assert found["all"] > 0.9 * found["whole"]
    assert found["default"] < found["old"]


def test_the_resolved_scenario_gives_the_same(tmp_path: Path) -> None:
    first = deployment(tmp_path, limit=20)
    (tmp_path / "again.yaml").write_text(resolved_yaml(first))
    results_agree(first.simulate(), build(load_scenario(tmp_path / "again.yaml")).simulate(), whole=True)
