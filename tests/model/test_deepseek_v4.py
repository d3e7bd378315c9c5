"""DeepSeek V4: published totals, the caches that servers logged, and blocks as they were measured."""

import json
from pathlib import Path

import numpy as np
import pytest

from simserve.deploy.build import build
from simserve.deploy.engine import placement_of
from simserve.engines.presets import engine_preset
from simserve.engines.sglang.memory import packed_pools
from simserve.engines.vllm.memory import memory_rules
from simserve.engines.vllm.packed import PackedGroups
from simserve.errors import ScenarioError
from simserve.hardware import load_gpu
from simserve.latency.compile import distinct_plans, setting_of
from simserve.model import Parallelism, active_params, kv_bytes_per_token, load_model, total_params
from simserve.model.draft import drafter_of
from simserve.model.kv import kv_transfer_size
from simserve.model.spec import pipeline_stages
from simserve.scenario import load_scenario
from simserve.units import GIB

FLASH = load_model("deepseek-v4-flash")


@pytest.mark.parametrize(
    ("name", "total", "active"), [("deepseek-v4-flash", 284e9, 13e9), ("deepseek-v4-pro", 1.6e12, 49e9)]
)
def test_parameters_are_the_published_ones(name: str, total: float, active: float) -> None:
    spec = load_model(name)
    embedding = spec.vocab_size * spec.hidden_size  # looked up, not multiplied: not among those published
    assert total_params(spec) == pytest.approx(total, rel=0.02)
    assert active_params(spec) - embedding == pytest.approx(active, rel=0.03)


def test_layers_are_those_of_the_configuration() -> None:
    assert [(group.count, group.attentions[0].brief) for group in FLASH.layers] == [
        (2, "window 64"), (21, "CSA top 512"), (20, "HCA 64")
    ]  # fmt: skip


def test_kv_of_a_token_and_of_a_sequence() -> None:
    # 584 B an entry and 132 an indexer's key, one for 4 tokens in 21 layers, one entry for 128 in 20
    assert kv_bytes_per_token(FLASH, "fp8") == 21 * (584 + 132) / 4 + 20 * 584 / 128
    # windows of 128; states of 8 tokens (512 and 128 wide, twice, values and scores in fp32), and of 128
    state = 43 * 128 * 584 + 21 * 8 * 2 * 2 * (512 + 128) * 4 + 20 * 128 * 2 * 512 * 4
    assert kv_transfer_size(FLASH, "fp8").state_bytes == state


def packed(steps: int = 1, step_tokens: int = 8192):
    (stage,) = pipeline_stages(FLASH, 1)
    return PackedGroups(steps)(FLASH, stage, "fp8", step_tokens, 1024)


def test_blocks_are_those_that_a_server_logged() -> None:
    """vLLM issue 54703 (0.28.1): groups of 1,002,240 B (256 tokens), 823,680 and 786,240 (64), 870,912 (4)
    and 656,640 (8); the widest is the block."""
    pool = packed()
    assert (pool.block_bytes, pool.block_tokens) == (1_002_240, 256)
    # 127 tokens behind the next in blocks of 64 (two groups) and 8, and 7 in blocks of 4, each begun anywhere
    assert pool.sequence_blocks == 2 * (2 + 1) + (16 + 1) + (2 + 1)


def test_capacity_of_a_logged_start() -> None:
    """vLLM issue 51041 (0.26.0, two H20, 8,192 tokens a step): a cache of 7.01 GiB holds 1,009,661 tokens."""
    pool, longest = packed(), 912_128
    blocks = 7.01 * GIB / pool.block_bytes
    needed = -(-longest // 256) + pool.sequence_blocks + pool.step_blocks
    assert blocks / needed * longest == pytest.approx(1_009_661, rel=0.025)


def test_releases_that_do_not_know_it_are_refused() -> None:
    assert memory_rules((0, 19)).packed is None
    assert memory_rules(None).packed is not None


@pytest.mark.parametrize(
    ("kind", "context", "us"),
    # vLLM 0.24.0 on an H200, one sequence: rows of dsv4_csa_ and dsv4_hca_generation_module
    [("compressed sparse attention", 2, 86.4), ("compressed sparse attention", 513, 99.4),
     ("heavily compressed attention", 2, 68.5), ("heavily compressed attention", 1025, 81.9)],
)  # fmt: skip
def test_blocks_take_what_was_measured(kind: str, context: int, us: float) -> None:
    setting = setting_of(FLASH, load_gpu("h200_sxm"), Parallelism(), weights_dtype=FLASH.checkpoint.weights,
                         kv_dtype="fp8")  # fmt: skip
    (plan,) = distinct_plans(FLASH, setting)
    (layers,) = [layers for layers in plan.attention if layers.name == kind]
    cost = layers.decode.cost(1, np.array([float(context)]))
    assert float(cost.us[0]) == pytest.approx(us, rel=1e-3)
    assert cost.tags.tolist() == [0]


def test_what_cannot_be_modelled_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="speculation = mtp"):
        drafter_of(FLASH, "mtp")
    fields = json.loads(Path("simserve/model/presets/deepseek-v4-flash.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields | {"compress_ratios": [16] * 43}))
    with pytest.raises(ScenarioError, match="compress_ratios"):
        load_model(str(path))


def test_pages_of_sglang_are_its_bytes_per_token() -> None:
    """`DSV4PoolConfigurator`: 0.1 x (584 x 43 + 8/128 x states x 21), and what every token keeps."""
    (stage,) = pipeline_stages(FLASH, 1)
    pool = packed_pools(FLASH, stage, "fp8", 8192, 256)
    windows = 0.1 * (584 * 43 + 8 / 128 * (2 * 2 * (512 + 128) * 4) * 21)
    assert pool.block_bytes == round(256 * (windows + 21 * (584 + 132) / 4 + 20 * 584 / 128))
    assert (pool.block_tokens, pool.sequence_blocks) == (256, 0)
    assert pool.fixed_bytes == 258 * 128 * 2 * 512 * 4 * 20  # a ring of 128 states for each request, and two


def test_sglang_runs_256_requests_of_it_by_default() -> None:
    """`arg_groups/deepseek_v4_hook.py`, whatever the number of attention ranks."""
    preset = engine_preset("sglang-0.5.23")
    for dp in (1, 4):
        placement = placement_of(FLASH, 90, Parallelism(dp=dp))
        assert preset.options(140 << 30, "h200_sxm", {}, 65536, placement)["max_running_requests"] == 256


def test_stages_of_a_pipeline_share_the_groups_of_the_whole_model() -> None:
    """Two windows' groups of 22 and 21 layers in all: of half of them no stage holds more than 11 in one."""
    stages = pipeline_stages(FLASH, 2)
    pools = [PackedGroups(1)(FLASH, stage, "fp8", 8192, 1024) for stage in stages]
    assert {pool.sequence_blocks for pool in pools} == {packed().sequence_blocks}
    assert all(packed().block_bytes / 2.2 < pool.block_bytes < packed().block_bytes / 1.8 for pool in pools)


def test_types_without_rows_are_estimated_and_named() -> None:
    setting = setting_of(FLASH, load_gpu("h200_sxm"), Parallelism(), weights_dtype="bf16", kv_dtype="fp8")
    (plan,) = distinct_plans(FLASH, setting)
    assert {int(it.decode.cost(1, np.array([512.0])).tags[0]) for it in plan.attention} == {3}
    assert any(note.startswith("compressed attention") for note in setting.machine.estimated)


def test_tiers_below_hbm_are_refused() -> None:
    pool = ["pools.0.gpu=h200_sxm", "pools.0.tp=4", "pools.0.kv_tiers=[{kind: cpu, capacity_gib: 100}]"]
    with pytest.raises(ScenarioError, match="kv_tiers is not modelled for compressed attention"):
        build(load_scenario("scenarios/demo.yaml", ["model=deepseek-v4-flash", *pool]))
