"""The picture of hit rate against memory: who is in it, in which order, and when there is none."""

from __future__ import annotations

from typing import Any

from simserve.report.compare_charts import _label_places, _tokens_by_source, hits_by_capacity


def table(tokens: dict[str, int], rates: dict[str, float | None]) -> dict[str, Any]:
    base, *variants = tokens
    measures = [
        {"key": "deployment.kv_tokens", "values": tokens},
        {"key": "whole.hit_rate", "values": rates},
    ]
    return {"base": base, "variants": variants, "measures": measures}


def test_runs_stand_in_order_of_memory_without_those_that_find_nothing() -> None:
    tokens = {"large": 900, "none": 900, "small": 100, "middle": 300}
    figure = hits_by_capacity(table(tokens, {"large": 0.3, "none": 0.0, "small": 0.05, "middle": 0.1}))
    (line,) = figure["data"]
    assert line["text"] == ["small", "middle", "large"]
    assert (list(line["x"]), list(line["y"])) == ([100, 300, 900], [5, 10, 30])


def test_two_memories_are_no_curve() -> None:
    assert not hits_by_capacity(table({"a": 5, "b": 5, "c": 9}, {"a": 0.1, "b": 0.2, "c": 0.3}))["data"]
    assert not hits_by_capacity(table({"a": 5, "b": 7, "c": 9}, {"a": 0.1, "b": None, "c": 0.3}))["data"]


def test_tokens_come_from_hbm_from_each_tier_or_are_computed() -> None:
    counts = {"prompt_tokens": 1000, "cached_tokens": 400}
    tiers = [
        {"kind": "cpu", "hit_tokens": 150},
        {"kind": "ssd", "hit_tokens": 50},
        {"kind": "cpu", "hit_tokens": 100},  # of another replica
    ]
    found = _tokens_by_source({"counts": counts, "kv_tiers": tiers})
    assert found == {"cpu": 250, "ssd": 50, "hbm": 100, "computed": 600}
    again = _tokens_by_source({"counts": counts, "kv_tiers": [{"kind": "cpu", "hit_tokens": 900}]})
    assert again == {"cpu": 400, "hbm": 0, "computed": 600}, "preempted requests load again"


def test_labels_of_neighbours_stand_apart() -> None:
    near = [(100.0, 10.0), (101.0, 10.1), (1000.0, 20.0)]
    assert _label_places(near) == ["top center", "bottom center", "top center"]
    assert _label_places([]) == []
