"""`simserve compare` of runs and of measured files, and traces made from measured files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measured_files as made
import numpy as np
import pytest

Call = Callable[..., Any]
SCENARIO = """\
name: replay
model: llama-3.1-8b
engine: vllm-0.33
workload: {trace: TRACE}
pools: [{gpu: h100_sxm}]
"""


@pytest.fixture
def bench(small: Path) -> Path:
    """A measured run of two requests that succeeded, in the current folder."""
    rows = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
    return made.write(
        Path("bench.json"),
        {**made.VLLM, **{k: made.VLLM[k][:3] for k in rows}, "completed": 2, "num_prompts": 3},
    )


@pytest.fixture
def replayed(bench: Path, simserve: Call) -> Path:
    """The folder of a simulation of the measured requests."""
    done = simserve("trace", "convert", bench, "bench.csv.gz")
    assert done.exit_code == 0, done.output
    assert "1 requests failed: left out" in done.stderr
    Path("replay.yaml").write_text(SCENARIO.replace("TRACE", "bench.csv.gz"))
    assert simserve("run", "replay.yaml", "--out", "sim", "--quiet").exit_code == 0
    return Path("sim")


def rows_of(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in table["measures"]}


def test_a_simulation_beside_what_it_replays(bench: Path, replayed: Path, simserve: Call) -> None:
    done = simserve("compare", replayed, bench, "--json")
    assert done.exit_code == 0, done.output
    table = json.loads(done.stdout)
    assert (table["base"], table["variants"]) == ("bench.json", ["sim"])
    assert (table["measured"]["bench.json"]["format"], table["measured"]["bench.json"]["failed"]) == (
        "vllm-bench",
        1,
    )
    rows = rows_of(table)
    assert rows["whole.ttft_ms.mean"]["values"]["bench.json"] == pytest.approx(100)
    assert rows["whole.tpot_ms.mean"]["values"]["bench.json"] == pytest.approx(30)
    assert rows["whole.e2e_ms.p50"]["values"]["bench.json"] == pytest.approx(145)
    summary = json.loads((replayed / "summary.json").read_text())["whole"]
    ours = rows["whole.ttft_ms.mean"]["values"]["sim"]
    assert ours == summary["ttft_ms"]["mean"]
    found = rows["whole.ttft_ms.mean"]["differences"]["sim"]
    assert found == pytest.approx({"absolute": ours - 100, "relative": ours / 100 - 1})
    pair = table["paired"]["sim"]["ttft_ms"]
    assert pair["requests"] == 2
    assert pair["mean"] == pytest.approx(ours - 100)


def test_what_people_read(bench: Path, replayed: Path, simserve: Call) -> None:
    done = simserve("compare", replayed, bench)
    assert done.exit_code == 0, done.output
    assert "bench.json: measured, vllm-bench; 2 of 3 requests succeeded, 1 failed" in done.stdout
    assert "sim - bench.json, request by request" in done.stdout
    assert "queueing" not in done.stdout  # a client does not see it


def test_other_requests_are_not_paired(bench: Path, replayed: Path, simserve: Call) -> None:
    longer = {**json.loads(bench.read_text()), "input_lens": [40, 91, 7]}
    made.write(Path("other.json"), longer)
    table = json.loads(simserve("compare", replayed, "other.json", "--json").stdout)
    assert table["paired"]["sim"] is None


def test_statistics_alone(replayed: Path, simserve: Call) -> None:
    made.write(Path("report.json"), made.llm_d())
    done = simserve("compare", "report.json", replayed, "--json")
    table = json.loads(done.stdout)
    rows = rows_of(table)
    assert rows["whole.ttft_ms.p99"]["values"]["report.json"] == pytest.approx(109.8)
    assert rows["whole.ttft_ms.p90"]["values"]["report.json"] is None
    assert rows["whole.ttft_ms.p90"]["differences"]["sim"] is None
    assert table["paired"]["sim"] is None
    assert "only statistics were recorded" in simserve("compare", "report.json", replayed).stdout


def test_two_simulations(replayed: Path, simserve: Call) -> None:
    simserve(
        "run",
        "replay.yaml",
        "--out",
        "two",
        "--quiet",
        "--set",
        "engine={preset: vllm-0.33, max_num_seqs: 1}",
    )
    done = simserve("compare", replayed, "two", "--json")
    table = json.loads(done.stdout)
    assert (table["base"], table["variants"], table["measured"]) == ("sim", ["two"], {})
    assert [change["name"] for change in table["changes"]["two"]] == ["max_num_seqs"]
    assert table["paired"]["two"]["e2e_ms"]["requests"] == 2
    assert "max_num_seqs 1,024 → 1" in simserve("compare", replayed, "two").stdout


def test_a_folder_with_variants_is_a_comparison(small: Path, simserve: Call) -> None:
    small.write_text(small.read_text() + "compare:\n  few: {engine: {max_num_seqs: 2}}\n", encoding="utf-8")
    simserve("run", small, "--out", "out", "--quiet")
    table = json.loads(simserve("compare", "out", "--json").stdout)
    assert {**json.loads(Path("out/compare.json").read_text()), "measured": {}} == table
    apart = json.loads(simserve("compare", "out", "out/variants/few", "--json").stdout)
    assert apart["variants"] == ["few"]
    assert apart["paired"]["few"] == table["paired"]["few"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("sim",), "a single run"),
        (("sim", "sim"), "a run is named twice"),
        (("sim", "nope.json"), "no such result folder or file of measurements"),
        (("sim", "bench.json", "--format", "vlm"), "unknown format of measurements"),
        (("sim", "empty.json"), "the file is empty"),
    ],
)
def test_wrong_input(replayed: Path, simserve: Call, args: tuple[str, ...], message: str) -> None:
    Path("empty.json").write_text("")
    done = simserve("compare", *args)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_conversations_replay_in_turn_and_share_their_beginning(small: Path, simserve: Call) -> None:
    """The same first prompt twice; the second turns carry prompt and answer of the first."""

    def turn(session: str, turn: int, start_ms: int, tokens: tuple[int, int]) -> dict[str, Any]:
        names = {"conversation_id": "c", "x_correlation_id": session, "turn_index": turn}
        return made.aiperf(start_ms, 20, 100, tokens, **names)

    lines = [turn("a", 0, 0, (64, 10)), turn("b", 0, 50, (64, 10)), turn("a", 1, 300, (100, 10))]
    lines.append(turn("b", 1, 160, (120, 10)))
    path = made.write(Path("profile_export.jsonl"), lines)
    assert simserve("trace", "convert", path, "out.csv").exit_code == 0
    header, *rows = Path("out.csv").read_text().splitlines()
    assert header == "arrival_s,prompt_tokens,output_tokens,session_id,think_ns,block_ids_16"
    cells = [row.split(",") for row in rows]
    assert [row[1] for row in cells] == ["64", "64", "120", "100"]  # by nominal arrival: 0, 50, 60, 200 ms
    assert [row[4] for row in cells] == ["0", "0", "10000000", "200000000"]
    blocks = [set(row[5].split("|")) for row in cells]
    assert [len(one) for one in blocks] == [4, 4, 7, 6]
    assert blocks[0] == blocks[1]
    assert len(blocks[2] & blocks[3]) == 4  # the first prompt; what follows the answers is each session's own
    Path("replay.yaml").write_text(SCENARIO.replace("TRACE", "out.csv"))
    assert simserve("run", "replay.yaml", "--out", "sim", "--quiet").exit_code == 0
    table = json.loads(simserve("compare", "sim", path, "--json").stdout)
    assert table["paired"]["sim"]["ttft_ms"]["requests"] == 4


def test_prompts_that_begin_alike_share_blocks(small: Path, simserve: Call) -> None:
    """A system prompt of 64 tokens and 64 of a question, 4 characters each; one prompt is sent twice."""
    texts = ["s" * 256 + "a" * 256, "s" * 256 + "b" * 256, "s" * 256 + "a" * 256, "c" * 512]
    (request, *_) = made.inference_perf()
    requests = [{**request, "request": json.dumps({"prompt": text})} for text in texts]
    for one in requests:
        one["info"] = {**request["info"], "request_metrics": {"text": {"input_tokens": 128}}}
    path = made.write(Path("per_request.json"), requests)
    done = simserve("trace", "convert", path, "out.csv")
    assert "64 characters for 16 tokens" in done.stderr
    first, other, again, alone = (
        row.split(",")[-1].split("|") for row in Path("out.csv").read_text().splitlines()[1:]
    )
    assert first == again
    assert [a == b for a, b in zip(first, other, strict=True)] == [True] * 4 + [False] * 4
    assert not set(alone) & {*first, *other}


def test_a_trace_from_measurements_without_send_times(small: Path, simserve: Call) -> None:
    path = made.write(Path("bench.jsonl"), [made.sglang()])
    done = simserve("trace", "convert", path, "out.csv")
    assert done.exit_code == 2
    assert "stores no send times: set the option arrivals" in done.stderr
    option = "arrivals={kind: constant, rate_per_s: 2}"
    assert simserve("trace", "convert", path, "out.csv", "-o", option).exit_code == 0
    arrivals = [float(row.split(",")[0]) for row in Path("out.csv").read_text().splitlines()[1:]]
    assert np.diff(arrivals) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("value", "message"),
    [(made.llm_d(), "statistics only"), (made.genai_perf(), "does not tell the prompts' lengths")],
)
def test_no_trace_without_requests(small: Path, simserve: Call, value: Any, message: str) -> None:
    path = made.write(Path("x.json"), value)
    done = simserve("trace", "convert", path, "out.csv")
    assert done.exit_code == 2
    assert message in done.stderr
