"""docs/metrics.md and docs/timeline.md name every column and every key that a result folder has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from simserve.metrics.bottlenecks import Limit
from simserve.metrics.groups import DraftUse, GroupUse, TierUse
from simserve.metrics.stability import Stability
from simserve.metrics.stages import LinkUse, SplitSummary
from simserve.metrics.utilisation import Use
from tests.tiny import tiny

DOCS = Path(__file__).parents[2] / "docs"
METRICS = (DOCS / "metrics.md").read_text(encoding="utf-8")
TIMELINE = (DOCS / "timeline.md").read_text(encoding="utf-8")
CODE = set(re.findall(r"`([A-Za-z0-9_]+)`", METRICS))

SPLIT = (
    tiny(
        "Split",
        requests=30,
        pool="{name: p, role: prefill, gpu: h100_sxm}\n"
        "  - {name: d, role: decode, gpu: h100_sxm, price_per_gpu_hour: 2}",
        slo="{ttft_ms: 500, itl_ms: 25}",
    )
    + """\
transfer: {link: rdma_400g}
compare:
  one: {pools: [{name: all, gpu: h100_sxm, replicas: 2, price_per_gpu_hour: 2}]}
replications: 2
"""
)

OPEN = {
    "waits",
    "step_time",
    "operations",
    "reasons",
    "cut",
    "limits",
    "missed",
    "definitions",
    "measures",
    "values",
    "changes",
    "paired",
}
"""Mappings whose keys are names of the run (reasons, limits, measures ...) and not of the format."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from typer.testing import CliRunner

    from simserve.cli import app

    place = tmp_path_factory.mktemp("docs")
    (place / "split.yaml").write_text(SPLIT)
    done = CliRunner().invoke(
        app, ["run", str(place / "split.yaml"), "--out", str(place / "a"), "--timeline"]
    )
    assert done.exit_code == 0, done.output
    return place / "a"


def keys(node: Any, name: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if name not in OPEN:
                yield key
            yield from keys(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from keys(value)


def rows(text: str) -> dict[str, str]:
    """Return dtype by column from the tables (a row may name several)."""
    found = {}
    for names, dtype in re.findall(r"^\| ([a-z0-9_`, ]+) \| ([a-z0-9]+) \|", text, flags=re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"[a-z0-9_]+", names), dtype)
    return found


@pytest.mark.parametrize("table", ["requests", "timeline", "gaps", "steps", "bands"])
def test_every_column_is_described_with_its_type(folder: Path, table: str) -> None:
    described = rows(TIMELINE if table == "steps" else METRICS)
    for field in pq.read_schema(folder / f"{table}.parquet"):
        dtype = str(field.type).split("<")[0].replace("double", "float64")
        wanted = dtype if table != "steps" else dtype.replace("dictionary", "string")
        assert described.get(field.name) == wanted, field.name


@pytest.mark.parametrize("run", ["", "variants/one"])
def test_every_key_of_the_summary_is_described(folder: Path, run: str) -> None:
    summary = json.loads((folder / run / "summary.json").read_text())
    assert {key for key in keys(summary) if key not in CODE} == set()


def test_every_key_of_the_comparison_is_described(folder: Path) -> None:
    table = json.loads((folder / "compare.json").read_text())
    runs = {"base", "one"}
    assert {key for key in keys(table) if key not in CODE | runs} == set()


@pytest.mark.parametrize("part", [TierUse, GroupUse, DraftUse, SplitSummary, LinkUse, Use, Stability, Limit])
def test_every_key_that_only_some_runs_have_is_described(part: Any) -> None:
    assert {field.name for field in fields(part)} - CODE == set()


def test_a_key_that_is_not_described_is_found(simserve: Callable[..., Any]) -> None:
    assert "a_new_key" in {key for key in keys({"whole": {"a_new_key": 1}}) if key not in CODE}
