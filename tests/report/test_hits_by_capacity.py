"""The picture of hit rate against memory: who is in it, in which order, and when there is none."""

from __future__ import annotations

from typing import Any

from simserve.report.compare_charts import hits_by_capacity


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
