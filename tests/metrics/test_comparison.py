"""Comparing stored runs: what changed, the measures side by side, and differences request by request."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from simserve.errors import ScenarioError
from simserve.metrics.comparison import compare, paired, read_comparison
from simserve.metrics.measures import MEASURES, Change, changes, figures_of, value_at
from simserve.metrics.store import StoredRun

POOL = {
    "name": "all",
    "gpu_name": "H100",
    "replicas": 1,
    "tp": 1,
    "pp": 1,
    "settings": {
        "gpu": "h100",
        "replicas": 1,
        "tp": 1,
        "max_model_len": 1600,
        "gpu_memory_utilization": 0.92,
    },
    "engine": "vllm-0.33",
    "engine_options": {"max_num_seqs": 8, "watermark": 0.0},
    "gpu_memory_utilization": 0.92,
    "kv_blocks": 100,
    "block_size": 16,
    "max_model_len": 1600,
    "limit_reason": "longest sequence that the KV pool of 100 blocks of 16 tokens holds",
}
MANIFEST: dict[str, Any] = {
    "model": {"name": "m"},
    "router": "round_robin",
    "trace": {"name": "t.csv", "requests_sha256": "abc"},
    "workload": {"rate_scale": 1.0},
    "slo": {"ttft_ms": 500.0},
    "pools": [POOL],
}


def changed(**pool: Any) -> dict[str, Any]:
    manifest = deepcopy(MANIFEST)
    for name in pool.keys() & POOL["settings"].keys():
        manifest["pools"][0]["settings"][name] = pool[name]
    manifest["pools"][0] |= pool
    return manifest


def test_equal_manifests_have_no_changes() -> None:
    assert changes(MANIFEST, deepcopy(MANIFEST)) == []


def test_settings_of_a_pool_are_named_without_it_if_it_is_the_only_one() -> None:
    other = changed(tp=2, engine_options={"max_num_seqs": 4, "watermark": 0.0})
    assert changes(MANIFEST, other) == [Change("tp", "", 1, 2), Change("max_num_seqs", "", 8, 4)]
    two = {**MANIFEST, "pools": [POOL, {**POOL, "name": "b"}]}
    other = {**MANIFEST, "pools": [POOL, {**changed(tp=2)["pools"][0], "name": "b"}]}
    assert changes(two, other) == [Change("tp", "b", 1, 2)]


def test_another_engine_hides_the_defaults_that_come_with_it() -> None:
    other = changed(engine="sglang", engine_options={"chunked_prefill_size": 1}, gpu_memory_utilization=0.83)
    assert changes(MANIFEST, other) == [Change("engine", "", "vllm-0.33", "sglang")]


def test_a_mapping_against_nothing_or_a_word_is_one_change() -> None:
    base, other = deepcopy(MANIFEST), deepcopy(MANIFEST)
    base["pools"][0]["settings"] |= {"placement": None, "load": "uniform"}
    other["pools"][0]["settings"] |= {
        "placement": {"kind": "eplb", "copies": 2},
        "load": {"kind": "zipf", "s": 0.8},
    }
    assert changes(base, other) == [
        Change("placement", "", None, {"kind": "eplb", "copies": 2}),
        Change("load", "", "uniform", {"kind": "zipf", "s": 0.8}),
    ]
    assert [one.variant for one in changes(other, base)] == [None, "uniform"]
    more = deepcopy(other)
    more["pools"][0]["settings"]["placement"]["copies"] = 4
    assert changes(other, more) == [Change("placement.copies", "", 2, 4)], "both have one: what differs in it"


def test_effects_are_no_changes() -> None:
    less = changed(kv_blocks=50, max_model_len=800)  # both follow from something else
    assert changes(MANIFEST, less) == []
    asked = changed(max_model_len=800, limit_asked=True)
    assert changes(MANIFEST, asked) == [Change("max_model_len", "", None, 800)]


def test_a_setting_that_nobody_foresaw_is_a_change() -> None:
    tiers = [{"kind": "cpu", "capacity_gib": 200}]
    other = changed(settings={**POOL["settings"], "kv_tiers": tiers})
    assert changes(MANIFEST, other) == [Change("kv_tiers", "", None, tiers)]
    other = {**MANIFEST, "settings": {"transfer": {"link": "rdma"}}}
    assert changes(MANIFEST, other) == [Change("transfer.link", "", None, "rdma")]


def test_other_pools_are_described_in_words() -> None:
    other = {**MANIFEST, "pools": [POOL, {**POOL, "tp": 4}]}
    assert changes(MANIFEST, other) == [
        Change("pools", "", "1 × H100 (vllm-0.33)", "1 × H100 (vllm-0.33) + 4 × H100 (vllm-0.33, TP 4)")
    ]


def test_model_router_workload_and_targets_are_compared() -> None:
    other = {
        **deepcopy(MANIFEST),
        "model": {"name": "n"},
        "router": "random",
        "workload": {"rate_scale": 2.0, "closed_loop": {"concurrency": 4}},
        "slo": None,
    }
    assert changes(MANIFEST, other) == [
        Change("model", "", "m", "n"),
        Change("router", "", "round_robin", "random"),
        Change("rate_scale", "", 1.0, 2.0),
        Change("slo.ttft_ms", "", 500.0, None),
        Change("closed_loop.concurrency", "", None, 4),
    ]


def table(ttft: list[float | None]) -> pa.Table:
    column = pa.array(ttft, pa.float64())
    return pa.table({"ttft_ms": column, "tpot_ms": column, "e2e_ms": pa.nulls(len(ttft), pa.float64())})


def test_pairs_are_requests_that_have_both_values() -> None:
    base = table([10.0, 20.0, 30.0, None, 50.0, 1.0])
    variant = table([15.0, 10.0, 30.0, 40.0, None, 0.0])  # differences +5 -10 0 -1
    found = paired(base, variant)
    assert found["ttft_ms"] == {
        "requests": 4,
        "mean": -1.5,
        "p5": pytest.approx(-10 + 0.15 * 9),
        "p50": -0.5,
        "p95": pytest.approx(5 - 0.15 * 5),
        "shorter": 0.5,
        "longer": 0.25,
    }
    assert found["e2e_ms"] is None


def run(
    ttft_ms: float | None, completed: int = 4, manifest: dict[str, Any] = MANIFEST, **pool: Any
) -> StoredRun:
    use = {"gpus": 1, "recomputed_tokens": 0, "busy": 0.5, "mfu": None, "mbu": None, "tokens_per_step": 2.0}
    summary = {
        "whole": {"ttft_ms": {"p50": ttft_ms, "p99": None}, "slo": None},
        "counts": {"requests": 4, "completed": completed},
        "pools": [{**use, **pool}],
        "stability": {"verdict": "stable"},
    }
    stored = StoredRun(Path(), summary, manifest, "")
    stored.__dict__["requests"] = table([ttft_ms])
    return stored


def row(found: dict[str, Any], key: str) -> dict[str, Any]:
    return next(one for one in found["measures"] if one["key"] == key)


def test_measures_stand_side_by_side_with_their_differences() -> None:
    runs = {"base": run(40.0), "fast": run(10.0, completed=3), "none": run(None, completed=0)}
    found = compare(runs)
    ttft = row(found, "whole.ttft_ms.p50")
    assert ttft["values"] == {"base": 40.0, "fast": 10.0, "none": None}
    assert ttft["differences"] == {"fast": {"absolute": -30.0, "relative": -0.75}, "none": None}
    assert found["verdicts"]["fast"] == {"requests": 4, "completed": 3, "stability": "stable"}
    assert found["paired"]["fast"]["ttft_ms"]["p50"] == -30.0
    assert "whole.tpot_ms.p50" not in {one["key"] for one in found["measures"]}  # nobody has it


def test_a_base_of_zero_has_no_relative_difference() -> None:
    found = compare({"base": run(1.0), "more": run(1.0, recomputed_tokens=5)})
    assert row(found, "deployment.recomputed_tokens")["differences"]["more"] == {
        "absolute": 5,
        "relative": None,
    }


def test_other_requests_are_not_paired() -> None:
    other = deepcopy(MANIFEST)
    other["trace"]["requests_sha256"] = "other"
    nameless = {**MANIFEST, "trace": {"name": "t.csv"}}
    assert compare({"base": run(1.0), "b": run(2.0, manifest=other)})["paired"] == {"b": None}
    pair = {"base": run(1.0, manifest=nameless), "b": run(2.0, manifest=nameless)}
    assert compare(pair)["paired"] == {"b": None}


def test_pools_that_disagree_have_no_common_figure() -> None:
    summary = {
        "pools": [
            {"gpus": 1, "recomputed_tokens": 2, "busy": 0.5},
            {"gpus": 2, "recomputed_tokens": 3, "busy": 0.6},
        ]
    }
    manifest = {
        "pools": [{**POOL, "kv_bytes_per_token": 7}, {**POOL, "kv_bytes_per_token": 7, "replicas": 2}]
    }
    figures = figures_of(summary, manifest)["deployment"]
    assert (figures["gpus"], figures["recomputed_tokens"], figures["busy"]) == (3, 5, None)
    assert (figures["kv_tokens"], figures["kv_bytes_per_token"]) == (4800, 7)


def test_every_measure_has_its_own_key() -> None:
    assert len({measure.key for measure in MEASURES}) == len(MEASURES)
    assert value_at({"whole": {"slo": None}}, "whole.slo.attainment") is None


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    assert read_comparison(tmp_path) is None
    (tmp_path / "compare.json").write_text("{")
    with pytest.raises(ScenarioError, match=r"compare\.json: not valid JSON"):
        read_comparison(tmp_path)


def test_every_data_parallel_rank_has_kv_memory_of_its_own() -> None:
    """100 blocks of 16 tokens in each of 8 ranks of each of 2 replicas."""
    pools = [POOL | {"dp": 8, "replicas": 2}]
    assert figures_of({"pools": []}, {"pools": pools})["deployment"]["kv_tokens"] == 100 * 16 * 8 * 2
