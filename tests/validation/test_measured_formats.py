"""Every measured format gives the same load test; what contradicts itself is refused with the suspicion."""

from __future__ import annotations

import copy
import gzip
import io
import json
from pathlib import Path
from typing import Any

import measured_files as made
import numpy as np
import pytest
from ruamel.yaml import YAML

from simserve.errors import ScenarioError, TraceError
from simserve.validation.loadtests.base import LoadTest
from simserve.validation.loadtests.read import read_load_test, read_load_tests

PER_REQUEST = {
    "vllm-bench": ("bench.json", made.VLLM),
    "sglang-bench": ("bench.jsonl", [made.sglang()]),
    "aiperf": ("profile_export.jsonl", made.aiperf_run()),
    "genai-perf": ("profile_export.json", made.genai_perf()),
    "guidellm": ("benchmarks.json", made.guidellm()),
    "inference-perf": ("per_request_lifecycle_metrics.json", made.inference_perf()),
}
STATISTICS = {
    "vllm-bench": ("bench.json", {k: v for k, v in made.VLLM.items() if k not in made.DETAILS}),
    "sglang-bench": ("bench.jsonl", [made.sglang(details=False)]),
    "aiperf-summary": ("profile_export_aiperf.json", made.AIPERF_SUMMARY),
    "inference-perf-summary": ("summary_lifecycle_metrics.json", made.INFERENCE_PERF_SUMMARY),
    "llm-d-report": ("report.json", made.llm_d()),
}


def read(tmp_path: Path, name: str, value: Any, format: str = "auto") -> LoadTest:
    return read_load_test(str(made.write(tmp_path / name, value)), format)


@pytest.mark.parametrize("format", PER_REQUEST)
def test_requests_of_every_format(tmp_path: Path, format: str) -> None:
    test = read(tmp_path, *PER_REQUEST[format])
    assert test.format == format
    found = test.requests
    assert found is not None
    seen = ~np.isnan(found.ttft_ms)
    ttft = found.ttft_ms[seen]
    assert sorted(ttft) == pytest.approx([90, 110], abs=1e-3)
    assert sorted(found.e2e_ms[seen]) == pytest.approx([120, 170], abs=1e-3)
    assert sorted(found.output_tokens[seen].tolist()) == [2, 3]
    if format != "genai-perf":
        assert sorted(found.prompt_tokens[seen].tolist()) == [40, 90]
    if format != "sglang-bench":  # stores no send times: as on file
        assert found.start_ns is not None
        assert found.start_ns[seen].tolist() == pytest.approx([0, 400e6], abs=1e3)
        assert ttft.tolist() == pytest.approx([110, 90], abs=1e-3)
    if found.gaps_ms is not None:
        assert sorted(found.gaps_ms) == pytest.approx([20, 30, 40], abs=1e-3)
    assert test.failed == (0 if format == "genai-perf" else 1)


@pytest.mark.parametrize("format", STATISTICS)
def test_statistics_of_every_format(tmp_path: Path, format: str) -> None:
    test = read(tmp_path, *STATISTICS[format])
    assert (test.format, test.requests) == (format, None)
    assert test.stated["ttft_ms.mean"] == pytest.approx(100)
    assert test.stated["ttft_ms.p50"] == pytest.approx(100)
    assert test.stated["ttft_ms.p99"] == pytest.approx(109.8)
    assert test.stated["tpot_ms.mean"] == pytest.approx(30)
    assert test.stated["e2e_ms.mean"] == pytest.approx(145)
    assert test.stated["requests_per_s"] == 1.5
    assert test.failed == 1


def test_a_named_format_and_an_unknown_one(tmp_path: Path) -> None:
    assert read(tmp_path, "x.json", made.VLLM, "vllm-bench").format == "vllm-bench"
    with pytest.raises(ScenarioError, match=r"'vlm-bench' \(did you mean 'vllm-bench'\?\); known: aiperf"):
        read(tmp_path, "x.json", made.VLLM, "vlm-bench")
    with pytest.raises(TraceError, match=r"no known format of measurements .* its first keys: answer"):
        read(tmp_path, "x.json", {"answer": 42})


def test_the_shape_of_inference_perf_of_2025(tmp_path: Path) -> None:
    now = read(tmp_path, "a.json", made.inference_perf()).requests
    then = read(tmp_path, "b.json", made.inference_perf(new=False)).requests
    assert now is not None
    assert then is not None
    assert now.output_tokens.tolist() == then.output_tokens.tolist()
    assert now.e2e_ms == pytest.approx(then.e2e_ms)


@pytest.mark.parametrize(
    ("tool", "ours"),
    [
        ("inference-perf", {"tpot_ms.mean": 30, "itl_ms.mean": 31, "itl_ms.p99": 40}),
        ("vllm-benchmark", {"tpot_ms.mean": 30, "itl_ms.mean": 31, "itl_ms.p99": 40}),
        ("aiperf", {"tpot_ms.mean": 31, "tpot_ms.p99": 40}),
        ("guidellm", {"itl_ms.mean": 31}),
    ],
)
@pytest.mark.parametrize("version", ["0.1", "0.2"])
@pytest.mark.parametrize("unit", ["s", "ms"])
def test_a_report_is_read_as_its_tool_means_it(
    tmp_path: Path, tool: str, ours: dict[str, float], version: str, unit: str
) -> None:
    """One word for two things: AIPerf and guidellm call inter-token latency what vLLM calls TPOT."""
    stated = read(tmp_path, "r.json", made.llm_d(tool, version, unit)).stated
    assert {key: value for key, value in stated.items() if key[:4] in ("tpot", "itl_")} == pytest.approx(ours)


def test_a_report_in_yaml_and_gzip(tmp_path: Path) -> None:
    text = io.StringIO()
    YAML().dump(made.llm_d(), text)
    path = tmp_path / "report.yaml.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.getvalue().encode()))
    assert read_load_test(str(path)).stated["ttft_ms.mean"] == pytest.approx(100)


def test_a_folder_of_results(tmp_path: Path) -> None:
    made.write(tmp_path / "summary_lifecycle_metrics.json", made.INFERENCE_PERF_SUMMARY)
    assert read_load_test(str(tmp_path)).format == "inference-perf-summary"
    made.write(tmp_path / "per_request_lifecycle_metrics.json", made.inference_perf())
    assert read_load_test(str(tmp_path)).format == "inference-perf"


def test_a_file_of_several_runs_asks_which(tmp_path: Path) -> None:
    path = made.write(tmp_path / "bench.jsonl", [made.sglang(), made.sglang()])
    assert len(read_load_tests(path)) == 2
    with pytest.raises(TraceError, match=r"holds 2 load tests: name one, .*bench.jsonl#1"):
        read_load_test(str(path))
    assert read_load_test(f"{path}#2").source == "bench.jsonl: line 2"
    with pytest.raises(TraceError, match="counted from 1"):
        read_load_test(f"{path}#3")


def test_ttft_zero_without_tokens_is_missing_not_zero(tmp_path: Path) -> None:
    test = read(tmp_path, "bench.json", made.VLLM)
    assert test.requests is not None
    assert np.isnan(test.requests.ttft_ms).sum() == 1
    assert (test.sent, test.failed, test.completed) == (4, 1, 3)
    assert any("missing, not 0 ms" in note for note in test.notes)


def test_statistics_of_what_was_not_measured_are_missing(tmp_path: Path) -> None:
    """A server that does not stream: vLLM's tool then writes means of 0."""
    zeros = {
        f"{what}_{name}_ms": 0.0 for what in ("mean", "median", "p99") for name in ("ttft", "tpot", "itl")
    }
    test = read(tmp_path, "bench.json", {**STATISTICS["vllm-bench"][1], **zeros})
    assert set(test.stated) == {"e2e_ms.mean", "requests_per_s", "output_tokens_per_s"}
    assert "itl_ms, tpot_ms, ttft_ms: a mean of 0 in the file" in test.notes[-1]


def test_warm_up_and_cancelled_are_left_out(tmp_path: Path) -> None:
    lines = [*made.aiperf_run(), made.aiperf(was_cancelled=True)]
    test = read(tmp_path, "profile_export.jsonl", lines)
    assert (test.sent, test.failed, test.left_out, test.completed) == (3, 1, 2, 2)


def test_nanoseconds_keep_every_digit(tmp_path: Path) -> None:
    """Epoch nanoseconds do not fit into a float: two sends 1 ns apart stay so."""
    one, other = made.aiperf(), made.aiperf()
    for key in ("request_start_ns", "request_end_ns"):
        other["metadata"][key] += 1
    found = read(tmp_path, "profile_export.jsonl", [one, other]).requests
    assert found is not None
    assert found.start_ns is not None
    assert found.start_ns.tolist() == [0, 1]


def test_a_sample_is_called_one(tmp_path: Path) -> None:
    test = read(tmp_path, "benchmarks.json", made.guidellm(sampled=8))
    assert test.sent == 11
    assert any(note.startswith("a sample: 2 of 10") for note in test.notes)


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(made.VLLM), **changes}


def with_stamps(field: str, value: float) -> dict[str, Any]:
    found = made.guidellm()
    found["benchmarks"][0]["requests"]["successful"][0]["info"]["timings"][field] = value
    return found


MS = [[30.0], [20.0, 40.0], [], []]
WALL = 1_700_000_000.0
UNCOUNTED = {k: v for k, v in made.VLLM.items() if not k.startswith(("mean", "median", "p99", "dur"))}

SUSPICIOUS = {
    "lists in ms": (changed(ttfts=[90.0, 110.0, 0, 0], itls=MS), "1000 times too large"),
    "statistics in s": (changed(mean_ttft_ms=0.1), "units off by 1000"),
    "gaps in ns": (changed(itls=[[30e6], [20e6, 40e6], [], []]), "per output token: .*1000 times too large"),
    "gaps in us read as s": ({**UNCOUNTED, "itls": [[3e-6], [2e-6, 4e-6], [], []]}, "1000 times too small"),
    "send times of two clocks": (changed(start_times=[10.4, WALL, 11.0, 12.0]), "two clocks mixed"),
    "a request longer than the run": (changed(duration=0.02), "in a run of 0.02 s"),
    "send times in ms": (changed(start_times=[10400, 10000, 11000, 12000]), "ms taken for s"),
    "first token before the request": (
        with_stamps("first_token_iteration", WALL),
        "negative, are clocks mixed",
    ),
    "last token by another clock": (with_stamps("last_token_iteration", 5000.0), "clocks mixed"),
    "start by another clock": (with_stamps("request_start", 5000.0), "clocks are mixed"),
    "latency in s, called ms": (
        {**made.AIPERF_SUMMARY, "request_latency": {"unit": "ms", "avg": 0.145}},
        "another unit",
    ),
}


@pytest.mark.parametrize("case", SUSPICIOUS)
def test_refused_with_the_suspicion(tmp_path: Path, case: str) -> None:
    value, suspicion = SUSPICIOUS[case]
    with pytest.raises(TraceError, match=suspicion):
        read(tmp_path, "x.json", value)


def test_aiperf_metadata_of_two_clocks(tmp_path: Path) -> None:
    other = made.aiperf(request_end_ns=5_000_000_000)
    with pytest.raises(TraceError, match="line 1: metadata: request_start_ns to request_end_ns"):
        read(tmp_path, "profile_export.jsonl", [other, made.aiperf()])
    early = made.aiperf(request_start_ns=1000, request_end_ns=1000 + 170_000_000)
    with pytest.raises(TraceError, match="clocks are mixed"):
        read(tmp_path, "profile_export.jsonl", [early, made.aiperf()])


def test_inference_perf_tokens_by_another_clock(tmp_path: Path) -> None:
    requests = made.inference_perf()
    requests[0]["info"]["response_metrics"]["output_token_times"] = [WALL, WALL + 0.03]
    with pytest.raises(TraceError, match=r"\[0\]: stamps of .* clocks are mixed"):
        read(tmp_path, "x.json", requests)


def without(value: dict[str, Any], *path: str) -> dict[str, Any]:
    found = copy.deepcopy(value)
    node = found
    for part in path[:-1]:
        node = node[part]
    del node[path[-1]]
    return found


BROKEN = {
    "empty lists": (changed(**{key: [] for key in made.DETAILS}), "the lists are empty"),
    "unequal lists": (changed(itls=[[]]), "itls has 1 entries, ttfts 4"),
    "no lengths": (without(made.VLLM, "input_lens"), "input_lens is missing.*; a list is expected"),
    "text for a number": (changed(ttfts=["a", 0, 0, 0]), r"ttfts\[0\] is 'a'"),
    "not a number": (changed(ttfts=[float("nan"), 0.1, 0, 0]), r"ttfts\[0\] is nan"),
    "an empty list": ([], "an empty list"),
    "no experiment": ({"service_kind": "openai", "experiments": []}, "no experiment"),
    "all failed": (changed(errors=["x"] * 4, completed=0), "no request succeeded"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_refused_with_the_place(tmp_path: Path, case: str) -> None:
    value, message = BROKEN[case]
    with pytest.raises(TraceError, match=message):
        read(tmp_path, "x.json", value)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(TraceError, match="the file is empty"):
        read_load_test(str(path))


@pytest.mark.parametrize("key", ["input_sequence_length", "output_sequence_length"])
def test_missing_lengths(tmp_path: Path, key: str) -> None:
    line = without(made.aiperf(), "metrics", key)
    with pytest.raises(TraceError, match=f"line 2: metrics: no {key}"):
        read(tmp_path, "profile_export.jsonl", [made.aiperf(), line])


def test_an_unknown_unit(tmp_path: Path) -> None:
    line = made.aiperf(metrics={"time_to_first_token": {"value": 1, "unit": "h"}})
    with pytest.raises(TraceError, match="unit 'h', known: ns, us"):
        read(tmp_path, "profile_export.jsonl", [line])


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    path.write_text(json.dumps(made.aiperf()) + "\n{broken\n")
    with pytest.raises(TraceError, match=r"profile_export.jsonl: line 2: not JSON"):
        read_load_test(str(path))


@pytest.mark.parametrize("value", [-5.0, -0.001])
def test_statistics_that_cannot_be_are_missing(tmp_path: Path, value: float) -> None:
    stated = {**STATISTICS["vllm-bench"][1], "p99_ttft_ms": value, "request_throughput": value}
    test = read(tmp_path, "bench.json", stated)
    assert not {name for name in test.stated if name.startswith("ttft_ms") or name == "requests_per_s"}
    assert any("ttft_ms" in note and f"p99 of {value:g}" in note for note in test.notes)


def test_the_rate_of_all_tokens_is_kept(tmp_path: Path) -> None:
    stated = {**STATISTICS["vllm-bench"][1], "total_token_throughput": 66.5}
    assert read(tmp_path, "bench.json", stated).stated["total_tokens_per_s"] == 66.5
    del stated["total_token_throughput"]
    assert read(tmp_path, "bench.json", stated | {"total_throughput": 7.0}).stated["total_tokens_per_s"] == 7
