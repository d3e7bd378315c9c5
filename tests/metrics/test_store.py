"""The result folder: complete or absent, never lost by accident, and the same bytes each time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from results_by_hand import MS, S, gaps, replica, result, timeline

from simserve.core import Status
from simserve.errors import ScenarioError
from simserve.metrics import Slo, read_results, store, summarize, write_results

MANIFEST = {"simserve_version": "0.1.0", "seed": 1, "command": "simserve run x.yaml"}
SLO = Slo(ttft_ms=60)


def a_run():
    line = timeline([(0, S, 1, 0, 50, 10, 2, 3), (S, 2 * S, 2, 1, 60, 0, 4, 2)])
    return result(
        arrival_ns=[0, 1, 2, 3],
        first_scheduled_ns=[0, 1, -1, 5],
        first_token_ns=[50 * MS, 70 * MS, -1, -1],
        last_token_ns=[150 * MS, 70 * MS, -1, 9 * MS],
        output_tokens=[3, 1, 0, 0],
        replica=[0, 0, -1, 0],
        status=[0, 0, Status.REFUSED, 0],
        reason=[-1, -1, 0, -1],
        reasons=("too long",),
        gaps=gaps([(50 * MS, 2)]),
        replicas=(replica(timeline=line),),
        end_ns=2 * S,
    )


def write(folder, run=None, **options):
    run = a_run() if run is None else run
    return write_results(folder, run, summarize(run, SLO), "name: x\n", MANIFEST, slo=SLO, **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_what_is_written_is_read_back(tmp_path):
    run = a_run()
    stored = read_results(write(tmp_path / "new" / "run", run))
    assert stored.manifest == MANIFEST
    assert stored.scenario_yaml == "name: x\n"
    assert stored.summary == json.loads(json.dumps(summarize(run, SLO).to_dict()))
    table = stored.requests.to_pandas()
    assert table["status"].tolist() == ["completed", "completed", "refused", "completed"]
    assert table["arrival_ns"].tolist() == [0, 1, 2, 3]
    assert stored.timeline["kv_used_blocks"].to_pylist() == [50, 60]
    assert stored.timeline["replica"].to_pylist() == ["main/0", "main/0"]
    assert stored.gaps.to_pylist() == [{"window": "whole", "gap_ns": 50.0 * MS, "count": 2}]


def test_what_never_happened_is_null_and_not_minus_one_or_nan(tmp_path):
    table = read_results(write(tmp_path / "run")).requests.to_pylist()
    shown, one_token, refused, silent = table
    assert (shown["ttft_ms"], shown["tpot_ms"], shown["good"]) == (50, 50, True)
    assert (one_token["tpot_ms"], one_token["good"]) == (None, False)
    assert refused["reason"] == "too long"
    absent = ("first_scheduled_ns", "first_token_ns", "last_token_ns", "ttft_ms", "e2e_ms", "replica")
    assert [refused[name] for name in absent] == [None] * len(absent)
    assert (silent["first_token_ns"], silent["ttft_ms"], silent["e2e_ms"]) == (None, None, (9 * MS - 3) / MS)
    assert shown["reason"] is None


def test_metrics_recomputed_from_the_table_equal_the_summary(tmp_path):
    """A reader with pandas gets the same numbers without our code."""
    stored = read_results(write(tmp_path / "run"))
    table: pd.DataFrame = stored.requests.to_pandas()
    done = table[table["status"] == "completed"]
    e2e_ms = (done["last_token_ns"] - done["arrival_ns"]) / 1e6
    assert stored.summary["whole"]["e2e_ms"]["p90"] == pytest.approx(np.percentile(e2e_ms, 90))
    assert stored.summary["whole"]["slo"]["good_requests"] == table["good"].sum()


def test_same_run_same_bytes(tmp_path):
    assert contents(write(tmp_path / "a")) == contents(write(tmp_path / "b"))


def test_summary_is_sorted_and_has_no_nan(tmp_path):
    text = (write(tmp_path / "run") / "summary.json").read_text()
    value = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in summary.json"))
    assert text == json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def test_an_existing_folder_is_refused_and_untouched(tmp_path):
    before = contents(write(tmp_path / "run"))
    with pytest.raises(ScenarioError, match=r"run: exists already.*--force"):
        write(tmp_path / "run", dataclasses.replace(a_run(), end_ns=3 * S))
    assert contents(tmp_path / "run") == before


def test_force_replaces_a_run(tmp_path):
    write(tmp_path / "run")
    (tmp_path / "run" / "report.html").write_text("old")
    write(tmp_path / "run", dataclasses.replace(a_run(), end_ns=3 * S), force=True)
    assert read_results(tmp_path / "run").summary["whole"]["end_s"] == 3
    assert set(contents(tmp_path / "run")) == set(store.REQUIRED)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_force_does_not_delete_what_is_not_ours(tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter1.tex").write_text("precious")
    with pytest.raises(ScenarioError, match=r"chapter1\.tex"):
        write(folder, force=True)
    assert (folder / "chapter1.tex").read_text() == "precious"


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "run").mkdir()
    assert read_results(write(tmp_path / "run")).manifest == MANIFEST


def test_a_failed_write_leaves_nothing_and_keeps_the_old_run(tmp_path, monkeypatch):
    before = contents(write(tmp_path / "run"))

    def full_disk(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(store, "gap_table", full_disk)
    with pytest.raises(OSError, match="no space"):
        write(tmp_path / "run", force=True)
    assert contents(tmp_path / "run") == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_in_the_way_and_a_folder_that_is_not_a_run_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ScenarioError, match="file: is a file"):
        write(tmp_path / "file", force=True)
    with pytest.raises(ScenarioError, match="nowhere: no such result folder"):
        read_results(tmp_path / "nowhere")
    (tmp_path / "half").mkdir()
    with pytest.raises(ScenarioError, match=r"lacks requests\.parquet"):
        read_results(tmp_path / "half")


def test_a_run_of_no_requests_can_be_kept(tmp_path):
    stored = read_results(write(tmp_path / "run", result(arrival_ns=[])))
    assert stored.requests.num_rows == 0
    assert stored.requests.schema.field("ttft_ms").type == pa.float64()


def test_columns_are_documented(tmp_path):
    """docs/metrics.md names every column of every table, and every key of summary.json's top level."""
    stored = read_results(write(tmp_path / "run"))
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    names = [*stored.requests.column_names, *stored.timeline.column_names, *stored.gaps.column_names]
    for name in [*names, *stored.summary, *stored.summary["whole"], *stored.summary["replicas"][0]]:
        assert f"`{name}`" in page, f"{name} is not in docs/metrics.md"


def test_a_folder_of_another_version_is_refused_with_what_to_do(tmp_path):
    folder = write(tmp_path / "run")
    kept = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**kept, "schema": 2}))
    with pytest.raises(
        ScenarioError, match=r"schema 2 .* run it again: simserve run .*scenario\.resolved\.yaml"
    ):
        read_results(folder)
