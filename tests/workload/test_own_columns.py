"""Own traffic: columns known by the words that people use, or named by the user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from simserve.workload import load_trace
from simserve.workload.tables.columns import SYNONYMS, mapping_of, normal

EPOCH = 1_772_355_600  # 2026-03-01T09:00:00Z
TIMES = [
    ("timestamp", "2026-03-01T09:00:00Z", "2026-03-01T09:00:01.25Z"),
    ("created_at", "2026-03-01 09:00:00 UTC", "2026-03-01 09:00:01.25 UTC"),
    ("startTime", "2026-03-01T10:00:00+01:00", "2026-03-01T09:00:01.25+00:00"),
    ("ts", f"{EPOCH}", f"{EPOCH + 1}.25"),
    ("ts", f"{EPOCH}000", f"{EPOCH + 1}250"),
    ("ts", f"{EPOCH}000000", f"{EPOCH + 1}250000"),
    ("start_time_unix_nano", f"{EPOCH}000000000", f"{EPOCH + 1}250000000"),
    ("Time (ms)", "5", "1255"),
    ("arrival_time_us", "0", "1250000"),
    ("time_s", "7.5", "8.75"),
]


@pytest.mark.parametrize(("name", "first", "second"), TIMES)
def test_times(name: str, first: str, second: str, written: Callable) -> None:
    path = written("own.csv", f"{name},prompt_tokens,completion_tokens\n{first},812,64\n{second},95,7\n")
    trace = load_trace(path)
    assert trace.origin.format == "columns"
    assert trace.arrival_ns.tolist() == [0, 1_250_000_000]
    assert trace.prompt_tokens.tolist() == [812, 95]
    assert trace.output_tokens.tolist() == [64, 7]
    assert any(f"arrival = {name}" in note for note in trace.origin.assumptions)


@pytest.mark.parametrize("role", ["prompt_tokens", "output_tokens"])
def test_every_synonym_is_read(role: str, written: Callable) -> None:
    for word in SYNONYMS[role].replace("|", " ").split():
        names = {"prompt_tokens": "input_tokens", "output_tokens": "completion_tokens"} | {role: word}
        path = written("own.csv", f"timestamp_ms,{names['prompt_tokens']},{names['output_tokens']}\n0,3,5\n")
        trace = load_trace(path)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([3], [5])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("usage.promptTokens", "prompt_tokens"),
        ("@timestamp", "timestamp"),
        ("Request tokens", "request_tokens"),
        ("gen_ai.usage.input_tokens", "input_tokens"),
    ],
)
def test_names_are_compared_in_one_form(name: str, wanted: str) -> None:
    assert normal(name) == wanted


def test_words_stand_for_one_role_only() -> None:
    words = [word for line in SYNONYMS.values() for word in line.replace("|", " ").split()]
    assert len(words) == len(set(words))
    assert all(normal(word) == word for word in words)


def test_nested_json_lines_and_labels(written: Callable) -> None:
    rows = (
        '{"ts": "2026-03-01T09:00:00Z", "model": "a", "usage": {"prompt_tokens": 9, "completion_tokens": 2, '
        '"prompt_tokens_details": {"cached_tokens": 4}}, "conversation_id": "x"}\n'
        '{"ts": "2026-03-01T09:00:02Z", "model": "b", "usage": {"prompt_tokens": 8, "completion_tokens": 1, '
        '"prompt_tokens_details": {"cached_tokens": 0}}, "conversation_id": "y"}\n'
    )
    trace = load_trace(written("own.jsonl.gz", rows))
    assert trace.arrival_ns.tolist() == [0, 2_000_000_000]
    assert trace.prompt_tokens.tolist() == [9, 8]
    assert trace.labels["cached_tokens"].tolist() == ["4", "0"]
    assert trace.labels["session"].tolist() == ["x", "y"]
    assert any("2 models" in note for note in trace.origin.assumptions)


def test_counts_that_anthropic_keeps_apart_are_added(written: Callable) -> None:
    header = "timestamp_s,input_tokens,cache_read_input_tokens,cache_creation_input_tokens,output_tokens\n"
    trace = load_trace(written("own.csv", header + "0,10,200,30,5\n"))
    assert trace.prompt_tokens.tolist() == [240]
    assert any("added" in note for note in trace.origin.assumptions)


def test_parquet_as_pandas_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    stamps = pa.array([EPOCH * 10**6, EPOCH * 10**6 + 250_000], pa.timestamp("us", "UTC"))
    parquet.write_table(pa.table({"created_at": stamps, "input_tokens": [9.0, 8.0], "osl": [1, 2]}), path)
    trace = load_trace(path)
    assert trace.arrival_ns.tolist() == [0, 250_000_000]
    assert trace.prompt_tokens.tolist() == [9, 8]


@pytest.mark.parametrize(
    ("content", "options", "parts"),
    [
        ("time,prompt_tokens,osl\n0,1,1\n27,1,1\n", {}, ("'0' to '27'", "s, ms, us or ns", "unit")),
        ("timestamp,created_at,isl,osl\n0,0,1,1\n", {}, ("timestamp or created_at", "--columns arrival=")),
        ("timestamp,isl\n0,1\n", {}, ("no column is known as output_tokens", "--columns output_tokens=")),
        ("isl,osl\n1,1\n", {}, ("no column arrival_s", "isl, osl")),
        ("timestamp_s,isl,osl\n0,1,1\n1,x,1\n", {}, ("line 3", "isl", "'x'")),
        ("timestamp,isl,osl\n2026-03-01,1,1\nsoon,1,1\n", {}, ("line 3", "timestamp", "'soon'")),
        ("timestamp,isl,osl\n2026-03-01T09:00:00Z,1,1\n2026-03-01T09:00:01,1,1\n", {}, ("line 3", "zone")),
        (
            "a,b,c\n0,1,1\n",
            {},
            ("unknown trace format", "arrival_s,prompt_tokens,output_tokens", "0.25,812,64"),
        ),
        ("a,b,c\n0,1,1\n", {"columns": {"arrivel": "a"}}, ("'arrivel'", "did you mean 'arrival'")),
        ("a,b,c\n0,1,1\n", {"columns": {"arrival": "d"}}, ("no column 'd'", "has: a, b, c")),
    ],
)
def test_what_is_not_clear_is_asked(
    content: str, options: dict, parts: tuple, written: Callable, refused: Callable
) -> None:
    message = refused(written("own.csv", content), **options)
    for part in parts:
        assert part in message


def test_a_mapping_settles_it(written: Callable) -> None:
    path = written("own.csv", "a,b,c,timestamp\n0,3,5,x\n1500,4,6,x\n")
    columns = {"arrival": "a", "prompt_tokens": "b", "output_tokens": "c"}
    trace = load_trace(path, columns=columns, unit="ms")
    assert trace.arrival_ns.tolist() == [0, 1_500_000_000]
    assert trace.output_tokens.tolist() == [5, 6]
    assert mapping_of("f", ["a", "b", "c"], columns) == columns


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_2 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_burstgpt_leaves_failures_out(written: Callable, refused: Callable) -> None:
    path = written(
        "b.csv",
        BURST + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,9,0,9,API log\n118.5,GPT-4,3,2,5,API log\n",
    )
    trace = load_trace(path)
    assert trace.origin.format == "burstgpt"
    assert trace.arrival_ns.tolist() == [0, 113_500_000_000]
    assert trace.prompt_tokens.tolist() == [472, 3]
    assert trace.origin.changes == ("1 rows with 0 response tokens failed: left out",)
    path = written("b2.csv", BURST_2 + "61204.0,0f6c-aa,3.9,ChatGPT,310,122,432,Conversation log\n")
    assert load_trace(path).labels["Session ID"].tolist() == ["0f6c-aa"]
    assert "every row has 0 response tokens" in refused(written("b3.csv", BURST + "5,m,1,0,1,API log\n"))
    assert "line 2: column Request tokens is '-4'" in refused(written("b4.csv", BURST + "5,m,-4,1,1,x\n"))


@pytest.mark.parametrize("cached", ["10", "10.0"])
def test_more_cached_than_prompt_tokens(cached: str, written: Callable, refused: Callable) -> None:
    head = "arrival_ms,input_tokens,completion_tokens,cached_tokens\n0,9,1,9\n1,9,1,\n"
    load_trace(written("good.csv", head))
    message = refused(written("bad.csv", f"{head}2,9,1,{cached}\n"))
    assert "line 4" in message
    assert "above the prompt's 9 tokens" in message


def test_a_column_of_adapters_is_kept_and_said_not_to_be_simulated(written: Callable) -> None:
    path = written("own.csv", "arrival_s,prompt_tokens,output_tokens,lora_id\n0,10,5,a\n1,10,5,b\n")
    trace = load_trace(path)
    assert trace.labels["lora_id"].tolist() == ["a", "b"]
    assert any("lora_id: adapters are not simulated" in note for note in trace.origin.assumptions)
