"""Scenarios with a prefill/decode split: what they say, what they refuse, and what must not move."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.deploy.build import build, build_all
from simserve.deploy.manifest import resolved_yaml
from simserve.deploy.router import router_of
from simserve.deploy.split import Balance, build_split
from simserve.errors import ScenarioError
from simserve.metrics.tables import request_table
from simserve.scenario import load_scenario
from simserve.scenario.variants import splits_of
from tests.places import SHARED

PD = "scenarios/pd_split.yaml"
MEASURED = "validation/published/mooncake_pd.csv"


def deployment(*options: str) -> Any:
    return build(load_scenario(PD, ["workload.limit=60", *options]))


def columns(*options: str) -> Any:
    result = deployment(*options).simulate()
    assert result.split is not None
    return result.split.columns, result


def test_prefill_does_not_move_with_the_decode_side() -> None:
    """Another parallelism, GPU and engine setting over there; the prompts end at the same ns."""
    base, _ = columns()
    for option in ("pools.1.tp=8", "pools.1.gpu=h200_sxm", "pools.1.engine.max_num_seqs=16"):
        other, _ = columns(option)
        assert (other.prefill_scheduled_ns == base.prefill_scheduled_ns).all()
        assert (other.prefill_end_ns == base.prefill_end_ns).all(), option


def test_decode_steps_do_not_move_with_the_prefill_side() -> None:
    """Requests so rare that each is alone: the time per token is that of the decode side."""
    alone = ("workload.rate_scale=0.001", "workload.limit=12")
    _, base = columns(*alone)
    prefill, other = columns("pools.0.tp=8", *alone)
    assert (prefill.prefill_end_ns != columns(*alone)[0].prefill_end_ns).any()
    for name in ("first_token_ns", "last_token_ns"):
        assert (getattr(other, name) > 0).all(), name
    assert (other.last_token_ns - other.first_token_ns == base.last_token_ns - base.first_token_ns).all()


def test_without_a_split_nothing_says_so() -> None:
    one = build_all(load_scenario(PD, ["workload.limit=20"]))["aggregated"]
    result = one.simulate()
    assert result.split is None
    assert "split" not in one.summarize(result).to_dict()
    assert not [name for name in request_table(result, None).column_names if "prefill" in name]
    assert "transfer" not in resolved_yaml(one)
    assert one.loaded.scenario.transfer is None


def test_a_resolved_split_runs_again_the_same(tmp_path: Path) -> None:
    first = deployment("transfer.overlap=layer", "transfer.local.uncached_tokens=100")
    (tmp_path / "again.yaml").write_text(resolved_yaml(first))
    again = build(load_scenario(tmp_path / "again.yaml"))
    one, two = first.simulate(), again.simulate()
    assert (one.last_token_ns == two.last_token_ns).all()
    assert one.split is not None
    assert one.split.kept_local > 0


def test_links_are_what_the_scenario_says() -> None:
    def rate(*options: str) -> int:
        it = deployment(*options)
        return build_split(it.loaded, it.pools, it.trace).link_bytes_per_s["prefill"]

    assert rate() == round(4 * 50e9 * 0.87)
    assert rate("transfer.links=8") == round(8 * 50e9 * 0.48)
    assert rate("transfer={link: rdma_400g}") == round(4 * 50e9 * 0.87)  # one card per GPU
    assert rate("transfer={link: pcie}") == 4 * 52_000_000_000
    assert rate("transfer={link: nvlink, efficiency: 1.0}") == 4 * 450_000_000_000
    assert rate("transfer={link: rdma_100g, links: 1, gb_s: 1.25, efficiency: 1.0}") == 1_250_000_000


def test_heads_are_cut_only_where_ranks_differ() -> None:
    def rate(*options: str) -> int:
        it = deployment(*options)
        return build_split(it.loaded, it.pools, it.trace).reshard_bytes_per_s["prefill", "decode"]

    assert rate() == 0
    assert rate("pools.1.tp=8") == round(4 * 3.35e12 / 2)  # the memory of the four reads and writes it
    assert rate("pools.1.tp=8", "transfer.reshard_gb_s=7.0") == 7_000_000_000


@pytest.mark.reference(MEASURED)
def test_transfer_times_are_those_that_mooncake_measured() -> None:
    """SGLang on four 400 Gb/s cards per node, KV of Qwen3-235B: our defaults, within 10 %."""
    it = build(load_scenario(PD, ["engine=sglang-0.5.23", "workload.limit=10"]))
    split = build_split(it.loaded, it.pools, it.trace)
    with (SHARED / MEASURED).open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["group"] == "mooncake-sgl-pd"]
    assert len(rows) >= 4
    for row in rows:
        ms, size, _ = row["extra_value"].split("; ")
        amount, unit = size.split()
        size_bytes = float(amount) * {"MB": 1e6, "GB": 1e9}[unit]
        ours = split.handshake_ns / 1e6 + 1e3 * size_bytes / split.link_bytes_per_s["prefill"]
        assert ours == pytest.approx(float(ms), rel=0.1)


def test_dynamo_does_not_credit_caches_on_the_decode_side() -> None:
    it = load_scenario(PD, ["router=dynamo_kv"])
    assert router_of(it, "prefill").options == {}
    assert router_of(it, "decode").options == {
        "overlap_score_credit": 0.0,
        "prefill_load_scale": 0.0,
        "router_queue_threshold": None,
    }
    assert router_of(load_scenario(PD, ["decode_router=dynamo_kv"]), "decode").options == {
        "router_queue_threshold": None
    }
    own = load_scenario(PD, ["router=dynamo_kv", "decode_router=least_kv"])
    assert router_of(own, "decode").kind == "least_kv"
    assert router_of(load_scenario(PD, ["router=cache_aware"]), "decode").kind == "cache_aware"


REFUSED = [
    (
        ["decode_router={kind: dynamo_kv, router_queue_threshold: 2}"],
        "decode replicas compute no prompts",
    ),
    (["pools.1.engine=sglang-0.5.23"], "cannot take KV from"),
    (["engine=orca"], "cannot be split"),
    (["pools.1.kv_dtype=fp8"], "KV moves as it is"),
    (["pools.1.pp=2"], "pp = 2"),
    (["pools.1.kv_tiers=[{kind: cpu, capacity_gib: 1}]"], "decode pools"),
    (["engine=sglang-0.5.23", "transfer.local.uncached_tokens=5"], "compute no prompts"),
    (["engine=sglang-0.5.23", "transfer.on_failure=recompute"], "compute no prompts"),
    (["router=session_affinity", "role_switch={}"], "remembers its replicas"),
    (["engine=sglang-0.5.23", "role_switch={}"], "cannot change sides"),
    (
        ["pools.0.pp=2", "pools.0.tp=2", "transfer.overlap=layer"],
        "pp = 2 cannot be combined with transfer.overlap",
    ),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_work_together_is_refused(options: list[str], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        deployment(*options)


def test_a_mixed_pool_needs_a_rule() -> None:
    extra = "pools.1={name: extra, gpu: h100_sxm, tp: 4}"
    with pytest.raises(ScenarioError, match="no pool has the role decode"):
        deployment(extra)


def test_all_splits_of_the_gpus() -> None:
    assert splits_of(8, 1, 1) == [(x, 8 - x) for x in range(1, 8)]
    assert splits_of(8, 2, 2) == [(1, 3), (2, 2), (3, 1)]
    assert splits_of(8, 4, 2) == [(1, 2)]
    assert splits_of(9, 2, 3) == [(1, 2), (3, 1)]  # one GPU is left over in the first and none in the second


def test_a_sweep_names_its_variants() -> None:
    loaded = load_scenario("scenarios/pd_ratio.yaml", ["pools.0.replicas=1", "pools.1.replicas=3"])
    assert loaded.scenario.base_name == "1p3d"
    assert list(loaded.variants) == ["2p2d", "3p1d", "aggregated"]
    replicas = [pool.replicas for pool in loaded.variants["3p1d"].scenario.pools]
    assert replicas == [3, 1]
    (whole,) = loaded.variants["aggregated"].scenario.pools
    assert (whole.role, whole.replicas) == ("mixed", 4)


def test_a_sweep_needs_gpus_of_one_kind() -> None:
    with pytest.raises(ScenarioError, match="cannot take each other's place"):
        load_scenario("scenarios/pd_ratio.yaml", ["pools.0.gpu=h200_sxm"])


def test_the_balance_formula_evens_out() -> None:
    """3 prefill and 5 decode replicas' worth of work on 8 and on 4 GPUs."""
    work = Balance(prefill=3.0, decode=5.0, batch=1)
    assert min(splits_of(8, 1, 1), key=work.busiest) == (3, 5)
    assert min(splits_of(4, 1, 1), key=work.busiest) == (2, 2)
    assert work.busiest((3, 5)) == 1


def test_stages_of_the_report_add_up() -> None:
    it = deployment("transfer.overlap=chunk")
    result = it.simulate()
    table = request_table(result, None)
    parts = ("prefill_queue", "prefill", "transfer", "decode_queue", "first_step")
    total = np.sum([table[f"{name}_ns"].to_numpy() for name in parts], axis=0)
    assert (total == (result.first_token_ns - result.arrival_ns)).all()
