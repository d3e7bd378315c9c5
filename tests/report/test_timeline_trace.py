"""The trace for Perfetto: every step a slice, spans and arrows that fit, and a run that does not change."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from simserve.deploy.build import Deployment, build
from simserve.deploy.manifest import manifest_of
from simserve.metrics.store import read_results, write_run
from simserve.report.export.perfetto import write_timeline
from simserve.scenario import Scenario
from simserve.sim.step_log import StepLog, Window

MS = 1_000_000


def deployment(**changes) -> Deployment:
    """A short, busy run on two small replicas: prompts in chunks, a queue, preemptions."""
    workload = {
        "synthetic": {
            "requests": 120,
            "arrivals": {"kind": "poisson", "rate_per_s": 40.0},
            "prompt_tokens": {"kind": "constant", "value": 700},
            "output_tokens": {"kind": "constant", "value": 120},
        }
    }
    pool = {"name": "all", "gpu": "h100_sxm", "replicas": 2}
    pools = [pool | {"max_model_len": 2048, "gpu_memory_utilization": 0.231}]
    engine = {
        "preset": "vllm-0.33",
        "max_num_batched_tokens": 1024,
        "async_scheduling": False,
    }
    return build(
        Scenario.model_validate(
            {"name": "steps", "model": "llama-3.1-8b", "engine": engine, "workload": workload, "pools": pools}
            | changes
        )
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A stored run with its steps, and the events of its trace."""
    folder = tmp_path_factory.mktemp("run")
    made, log = deployment(), StepLog()
    result = made.simulate(step_log=log)
    steps = log.result()
    write_run(folder, result, made.summarize(result), "", manifest_of(made, "simserve run"), None, steps)
    run = read_results(folder)
    write_timeline(run, folder / "timeline.json.gz")
    return run, json.loads(gzip.decompress((folder / "timeline.json.gz").read_bytes()))


def test_recording_steps_changes_nothing() -> None:
    plain, logged = deployment().simulate(), deployment().simulate(step_log=StepLog())
    for name in ("first_token_ns", "last_token_ns", "replica", "preemptions"):
        assert np.array_equal(getattr(plain, name), getattr(logged, name))


def test_steps_of_runs_are_those_of_stepping() -> None:
    logs = []
    for fast_forward in (True, False):
        log = StepLog()
        deployment(fast_forward=fast_forward).simulate(step_log=log)
        logs.append(log.result())
    fast, slow = logs
    assert len(fast) == len(slow)
    for name in (
        "replica",
        "start_ns",
        "end_ns",
        "sequences",
        "context",
        "chunks",
        "prompt_tokens",
        "admitted",
    ):
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name
    assert slow.preempted.sum() > 0


def test_counts_are_those_of_the_run(stored) -> None:
    run, _ = stored
    assert run.steps["steps"].to_numpy().sum() == sum(r["steps"] for r in run.summary["replicas"])
    assert run.steps["prompt_tokens"].to_numpy().sum() >= 120 * 700
    assert (
        run.steps["preempted"].to_numpy().sum() == sum(r["preemptions"] for r in run.summary["replicas"]) > 0
    )


def test_slices_are_the_stored_steps_and_never_overlap(stored) -> None:
    run, trace = stored
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "step"]
    drawn = [(round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)) for e in slices]
    table = list(zip(run.steps["start_ns"].to_pylist(), run.steps["end_ns"].to_pylist(), strict=True))
    assert drawn == table
    by_track = defaultdict(list)
    for event, span in zip(slices, drawn, strict=True):
        by_track[event["pid"]].append(span)
    for spans in by_track.values():
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert {e["name"] for e in slices} >= {"decode", "mixed", "prefill"}


def test_spans_of_a_request_follow_each_other_and_arrows_point_into_slices(stored) -> None:
    run, trace = stored
    events = trace["traceEvents"]
    spans = Counter((e["id"], e["name"], e["ph"]) for e in events if e["ph"] in "be")
    assert len(spans) == 2 * 3 * 120
    assert set(spans.values()) == {1}
    begins = {(e["id"], e["name"]): e["ts"] for e in events if e["ph"] == "b"}
    ends = {(e["id"], e["name"]): e["ts"] for e in events if e["ph"] == "e"}
    rows = run.requests.to_pylist()
    for row in rows:
        ident = row["request"]
        assert begins[ident, "queue"] == row["arrival_ns"] / 1000
        assert ends[ident, "queue"] == begins[ident, "prefill"]
        assert ends[ident, "prefill"] == begins[ident, "decode"] == row["first_token_ns"] / 1000
        assert ends[ident, "decode"] == row["last_token_ns"] / 1000
    edges = defaultdict(set)
    for event in events:
        if event["ph"] == "X":
            edges[event["pid"]] |= {round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)}
    arrows = [e for e in events if e["ph"] in "stf"]
    assert Counter(e["ph"] for e in arrows) == {"s": 120, "t": 120, "f": 120}
    assert all(round(e["ts"] * 1000) in edges[e["pid"]] for e in arrows)


def test_every_event_has_what_the_format_asks_for(stored) -> None:
    _, trace = stored
    needed = {
        "M": {"name", "args"},
        "X": {"ts", "dur", "tid", "name"},
        "C": {"ts", "name", "args"},
        "b": {"ts", "id", "cat", "name"},
        "e": {"ts", "id", "cat", "name"},
        "s": {"ts", "id", "cat", "tid"},
        "t": {"ts", "id", "cat", "tid"},
        "f": {"ts", "id", "cat", "tid", "bp"},
    }
    for event in trace["traceEvents"]:
        assert needed[event["ph"]] <= set(event), event
        assert isinstance(event["pid"], int)
        if event["ph"] == "C":
            assert all(isinstance(n, int) for n in event["args"].values())


def test_a_window_holds_the_steps_that_overlap_it() -> None:
    window = Window(500 * MS, 900 * MS)
    logs = [StepLog(), StepLog(window)]
    for log in logs:
        deployment().simulate(step_log=log)
    whole, part = (log.result() for log in logs)
    inside = (whole.end_ns >= window.start_ns) & (whole.start_ns <= window.end_ns)
    assert np.array_equal(whole.start_ns[inside], part.start_ns)
    assert 0 < len(part) < len(whole)


def test_too_many_steps_are_kept_as_runs_then_cut_and_it_says_so() -> None:
    log = StepLog(most_rows=150)
    result = deployment().simulate(step_log=log)
    steps = log.result()
    assert len(steps) == 150
    assert steps.steps.max() > 1
    assert steps.cut_ns is not None
    assert 0 < steps.cut_ns < result.end_ns


@pytest.mark.parametrize("text", ["10s", "20s:10s", "10:20", "x:5s", "5s:5s"])
def test_a_window_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    from simserve.cli.terminal import parse_window
    from simserve.errors import ScenarioError

    with pytest.raises(ScenarioError, match="--window"):
        parse_window(text)


def test_windows_as_people_write_them() -> None:
    from simserve.cli.terminal import parse_window

    assert parse_window("10s:20s") == (10_000 * MS, 20_000 * MS)
    assert parse_window("500ms:") == (500 * MS, 1 << 62)
    assert parse_window(":1.5m") == (0, 90_000 * MS)


@pytest.fixture(scope="module")
def split_trace(tmp_path_factory) -> tuple[Path, list[dict]]:
    """The trace of a prefill/decode split."""
    pools = [
        {"name": "p", "role": "prefill", "gpu": "h100_sxm"},
        {"name": "d", "role": "decode", "gpu": "h100_sxm"},
    ]
    made, log = deployment(pools=pools, transfer={"link": "rdma_400g"}), StepLog()
    result = made.simulate(step_log=log)
    folder = tmp_path_factory.mktemp("split")
    write_run(folder, result, made.summarize(result), "", manifest_of(made, ""), None, log.result())
    write_timeline(read_results(folder), folder / "timeline.json.gz")
    return folder, json.loads(gzip.decompress((folder / "timeline.json.gz").read_bytes()))["traceEvents"]


def test_arrows_lead_from_the_arrival_through_both_pools(split_trace) -> None:
    _, events = split_trace
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    stops = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            stops[event["id"]].append((event["ts"], event["ph"], names[event["pid"]]))
    assert len(stops) == 120
    for found in stops.values():
        times, kinds, places = zip(*sorted(found, key=lambda stop: stop[0]), strict=True)
        assert (kinds[0], kinds[-1]) == ("s", "f")
        assert list(times) == sorted(times)
        where = [place for place, before in zip(places[1:], places, strict=False) if place != before]
        assert [any(part in name for name in where) for part in ("p-0", "d-0")] == [True, True], places


def test_counters_are_those_of_the_steps(split_trace) -> None:
    folder, events = split_trace
    run = read_results(folder)
    held = [e["args"]["used"] for e in events if e["ph"] == "C" and e["name"] == "KV blocks"]
    assert max(held) == max(run.steps["kv_used_blocks"].to_pylist())
    assert {e["name"] for e in events if e["ph"] == "C"} >= {"KV blocks", "requests"}


def test_the_file_is_bounded_by_the_steps_that_a_log_holds(split_trace) -> None:
    """200,000 rows and 2,000 requests are at most some 20 MB, by the bytes that each takes here."""
    folder, events = split_trace
    steps = sum(e["ph"] == "X" and e["cat"] == "step" for e in events)
    bytes_each = (folder / "timeline.json.gz").stat().st_size / steps
    assert bytes_each * 200_000 < 20e6
