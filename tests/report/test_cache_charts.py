"""The picture of hit rate against memory: who is in it, in which order, and when there is none."""

from __future__ import annotations

from typing import Any

from simserve.report.compare.charts import (
    _HIGH,
    _WIDE,
    _label_box,
    _label_places,
    _shared_area,
    hits_by_capacity,
)
from simserve.report.run.time_breakdown import source_rows, tokens_by_source
from simserve.report.styles import looks


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
    found = tokens_by_source({"counts": counts, "kv_tiers": tiers})
    assert found == {"cpu": 250, "ssd": 50, "hbm": 100, "computed": 600}
    again = tokens_by_source({"counts": counts, "kv_tiers": [{"kind": "cpu", "hit_tokens": 900}]})
    assert again == {"cpu": 400, "hbm": 0, "computed": 600}, "preempted requests load again"


def test_labels_cover_neither_each_other_nor_points() -> None:
    names = ["uniform", "eplb", "eplb_refreshed", "topology", "lplb", "far"]
    xs = dict(zip(names, [1080.0, 1140.0, 1141.0, 950.0, 1139.0, 2600.0], strict=True))
    ys = dict(zip(names, [56.3, 57.8, 62.8, 52.0, 63.2, 99.0], strict=True))
    axes = {"xaxis": {"range": [500, 3000]}, "yaxis": {"range": [40, 110]}}
    points = looks(names)
    places = _label_places(points, xs, ys, axes)
    spots = {n: ((xs[n] - 500) / 2500 * _WIDE, (110 - ys[n]) / 70 * _HIGH) for n in names}
    boxes = {n: _label_box(n, spots[n], place) for n, place in zip(names, places, strict=True)}
    for name, box in boxes.items():
        others = [other for n, other in boxes.items() if n != name]
        dots = [(x - 5, y - 5, x + 5, y + 5) for x, y in spots.values()]
        assert not any(_shared_area(box, other) for other in others + dots), name
    assert places[-1] == "top center", "the usual place where it is free"
    assert _label_places([], {}, {}, axes) == []


def test_one_run_says_what_came_from_which_tier() -> None:
    counts = {"prompt_tokens": 1000, "cached_tokens": 400}
    rows = source_rows({"counts": counts, "kv_tiers": [{"kind": "cpu", "hit_tokens": 150}]})
    assert [(row["words"], row["tokens"]) for row in rows] == [
        ("found in the prefix cache", 250),
        ("loaded from cpu", 150),
        ("computed", 600),
    ]
