"""Vidur, LLMServingSim and simserve's own columns."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyarrow import parquet

from simserve.workload import load_trace

PLAIN = "arrival_s,prompt_tokens,output_tokens"


def test_vidur_keeps_every_decimal_and_every_token(written: Callable) -> None:
    rows = "0.25,5000,6000\n0.250000001,7,8\n1e-05,9,10\n"
    trace = load_trace(written("v.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows))
    assert trace.arrival_ns.tolist() == [0, 249_990_000, 249_990_001]
    assert trace.prompt_tokens.tolist() == [9, 5000, 7]


def test_frontier_blocks(written: Callable) -> None:
    header = "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids\n"
    trace = load_trace(written("f.csv", header + "0.25,48,6,3,901|902|903\n0.5,33,6,3,901|902|904\n"))
    assert trace.block_ids.tolist() == [0, 1, 2, 0, 1, 3]
    assert trace.block_tokens == 16
    assert trace.labels["session_id"].tolist() == ["3", "3"]


def test_vidur_lengths_only(written: Callable, refused: Callable) -> None:
    path = written(
        "l.csv", "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n5,6,11,0.8\n7,8,15,0.9\n"
    )
    assert "lengths only" in refused(path)
    trace = load_trace(path, arrivals={"kind": "constant", "rate_per_s": 4})
    assert trace.arrival_ns.tolist() == [0, 250_000_000]
    assert "rate_per_s" in refused(path, arrivals={"kind": "poisson"})


def test_llmservingsim_flat_and_agentic(written: Callable, refused: Callable) -> None:
    turns = '{"input_toks": 400, "output_toks": 20, "tool_duration_ns": 5000000}, '
    turns += '{"input_toks": 450, "output_toks": 30}'
    agent = '{"session_id": "a", "arrival_time_ns": 1000000, "sub_requests": [' + turns + "]}\n"
    flat = '{"input_toks": 9, "output_toks": 1, "arrival_time_ns": 2000000}\n'
    trace = load_trace(written("a.jsonl", agent + flat))
    assert trace.arrival_ns.tolist() == [0, 1_000_000, 5_000_000]
    assert trace.prompt_tokens.tolist() == [400, 9, 450]
    assert trace.session.tolist() == [0, 1, 0]
    assert trace.think_ns.tolist() == [0, 0, 5_000_000]
    assert "sub_requests" in refused(written("a.jsonl", '{"arrival_time_ns": 1, "sub_requests": []}\n'))


def test_plain_csv(written: Callable) -> None:
    header = "arrival_ms,prompt_tokens,output_tokens,max_tokens,priority,session_id,think_s,tenant\n"
    trace = load_trace(
        written("p.csv", header + "1.5,10,2,4,-1,x,0,a\n0,20,3,5,2,y,0,b\n7,30,1,1,0,x,0.25,a\n")
    )
    assert trace.arrival_ns.tolist() == [0, 1_500_000, 251_500_000]
    assert trace.prompt_tokens.tolist() == [20, 10, 30]
    assert trace.max_tokens.tolist() == [5, 4, 1]
    assert trace.priority.tolist() == [2, -1, 0]
    assert trace.session.tolist() == [0, 1, 1]
    assert trace.think_ns.tolist() == [0, 0, 250_000_000]
    assert trace.labels["tenant"].tolist() == ["b", "a", "a"]


def test_repeated_request_ids_are_counted(written: Callable) -> None:
    trace = load_trace(written("p.csv", PLAIN + ",request_id\n0,1,1,a\n1,2,1,b\n2,3,1,a\n"))
    assert trace.origin.changes == ("1 rows repeat the id of an earlier request: kept",)
    assert trace.labels["request_id"].tolist() == ["a", "b", "a"]


def test_sessions_without_pauses_stay_open_loop(written: Callable) -> None:
    trace = load_trace(written("p.csv", PLAIN + ",session_id\n0,1,1,a\n1,2,1,a\n"))
    assert trace.session is None
    assert trace.labels["session_id"].tolist() == ["a", "a"]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (PLAIN + "\n-1,5,5\n", ("line 2", "arrival_s", "'-1'")),
        (PLAIN + "\n0,5,5\ninf,5,5\n", ("line 3", "arrival_s", "'inf'")),
        (PLAIN + "\n0,5,5\n,5,5\n", ("line 3", "arrival_s", "missing")),
        (PLAIN + "\n0,5,1e3\n", ("line 2", "output_tokens", "'1e3'")),
        (PLAIN + ",arrival_ms\n0,5,5,0\n", ("arrival_s", "arrival_ms", "both")),
        (PLAIN + ",think_s\n0,5,5,0\n", ("think_s", "session_id")),
        (PLAIN + ",priority\n0,5,5,high\n", ("line 2", "priority", "'high'")),
        (
            PLAIN + ",block_ids_16\n0,33,5,1|2|3\n0,20,5,1\n1,20,5,1|2|3\n",
            ("line 3", "block_ids_16 has 1 ids"),
        ),
        ("prompt_tokens,output_tokens\n5,5\n", ("no column arrival_s",)),
        (PLAIN + "\n", ("header but no rows",)),
    ],
)
def test_bad_plain_files(written: Callable, refused: Callable, content: str, parts: tuple) -> None:
    message = refused(written("p.csv", content))
    for part in parts:
        assert part in message


def test_parquet(tmp_path, refused: Callable) -> None:
    path = tmp_path / "p.parquet"

    def write(**columns: list) -> None:
        parquet.write_table(pa.table(columns), path)

    write(arrival_s=[0.1, 0.3], prompt_tokens=[1, 2], output_tokens=[3, 4])
    assert load_trace(path).arrival_ns.tolist() == [0, 200_000_000]
    write(arrival_s=[0.1, float("nan")], prompt_tokens=[1, 2], output_tokens=[3, 4])
    assert "row 2: column arrival_s is nan" in refused(path)
    write(arrival_s=[0.1, None], prompt_tokens=[1, 2], output_tokens=[3, 4])
    assert "row 2: column arrival_s is missing" in refused(path)
    write(arrival_s=[0.1, 0.2], prompt_tokens=[1.0, 2.0], output_tokens=[3, 4])
    assert "row 1: column prompt_tokens is 1.0" in refused(path)
    write(arrival_s=[0.1, 0.2], prompt_tokens=[1, None], output_tokens=[3, 4])
    assert "row 2: column prompt_tokens is missing" in refused(path)
    path.write_bytes(b"PAR1 nonsense")
    assert "damaged Parquet" in refused(path)


def test_qwen_bailian(written: Callable) -> None:
    rows = (
        '{"chat_id": 12, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 20, "output_length": 9, '
        '"type": "text", "turn": 1, "hash_ids": [3, 4]}\n'
        '{"chat_id": 31, "parent_chat_id": 12, "timestamp": 8.25, "input_length": 40, "output_length": 9, '
        '"type": "text", "turn": 2, "hash_ids": [3, 7, 19]}\n'
    )
    trace = load_trace(written("q.jsonl", rows))
    assert trace.origin.format == "qwen-bailian"
    assert trace.arrival_ns.tolist() == [0, 6_750_000_000]
    assert trace.block_tokens == 16
    assert trace.block_ids.tolist() == [0, 1, 0, 2, 3]
    assert trace.labels["parent_chat_id"].tolist() == ["-1", "12"]
