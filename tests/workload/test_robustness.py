"""Whatever a file holds, it is read or refused in one line; and reading is fast."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from simserve.errors import UserError
from simserve.workload import load_trace

FILES = [
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.001,374,44\n2023-11-16 18:15:47.0,3,4\n",
    b"arrived_at,num_prefill_tokens,num_decode_tokens,block_hash_ids\n0.25,48,6,1|2|3\n1e-3,33,6,1|2|4\n",
    b"arrival_s,prompt_tokens,output_tokens,session_id,think_s\n0,1,2,a,0\n1,1,2,a,5.5\n",
    b'{"timestamp": 0, "input_length": 900, "output_length": 30, "hash_ids": [4, 5], "session_id": "a"}\n'
    b'{"session_id": "a", "delay": 2500.5, "input_length": 120, "output_length": 60, "hash_ids": [6]}\n',
    b'{"arrival_time_ns": 1, "sub_requests": [{"input_toks": 1, "output_toks": 1, "tool_duration_ns": 4}]}\n',
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,472,18,490,API log\n"
    b"45,GPT-4,1087,0,1087,API log\n",
    b"ts,promptTokens,completion_tokens,cached_tokens\n1772355600,812,64,3\n1772355601.5,95,7,0\n",
    b'[{"ts": "2026-03-01T09:00:00Z", "usage": {"prompt_tokens": 9, "completion_tokens": 2}},\n'
    b'{"ts": "2026-03-01T09:00:02Z", "usage": {"prompt_tokens": 8, "completion_tokens": 1}}]\n',
    b'{"custom_id": "a", "response": {"status_code": 200, "body": {"usage": {"prompt_tokens": 9, '
    b'"completion_tokens": 2}}}, "error": null}\n',
    b'{"startTime": "2026-03-01T09:00:00Z", "traceId": "t", "usageDetails": {"input": 9, "output": 2}}\n',
    b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "a", "startTimeUnixNano": "9", "attributes": ['
    b'{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "9"}}, '
    b'{"key": "gen_ai.usage.output_tokens", "value": {"intValue": "2"}}]}]}]}]}\n',
    b"startTime,prompt_tokens,completion_tokens,spend,status,cache_hit\n"
    b"2026-03-01 09:00:00,12,3,0.1,success,\n",
]
PIECES = [
    *(b'"', b",", b"\n", b"\r", b"-1", b"1e3", b"NaN", b"null", b"true", b"{}", b"[]", b"\x00", b"\xff"),
    *(
        b"9" * 25,
        b'"a"',
        b"1.5",
        b"|",
        b" ",
        b"\xef\xbb\xbf",
        b"0",
        b"1_000",
        b"\xd9\xa1",
        b"+5",
        b"Infinity",
    ),
]


@pytest.mark.parametrize("seed", range(len(FILES)))
def test_damaged_files_are_read_or_refused_in_one_line(seed: int, written: Callable) -> None:
    rng = random.Random(seed)
    read, refusals = 0, []
    for _ in range(400):
        data = bytearray(FILES[seed])
        for _ in range(rng.randint(1, 3)):
            start = rng.randrange(len(data) + 1)
            data[start : start + rng.randint(0, 6)] = rng.choice(PIECES)
        path = written("damaged", bytes(data))
        try:
            load_trace(path)
            read += 1
        except UserError as error:
            refusals.append(str(error))
    assert read > 0
    assert len(refusals) > 0
    assert not any("\n" in message for message in refusals)


GAPS = [
    ("p.csv", "arrival_s,prompt_tokens,output_tokens\n0,1,1\n0.5,1,1\n1764500001,1,1\n", "line 4"),
    ("p.csv", "arrival_ms,prompt_tokens,output_tokens\n1764500000000,1,1\n1764500001,1,1\n", "line 3"),
    (
        "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,1,1\n1970-01-01 00:00:00,1,1\n",
        "line 3",
    ),
    ("v.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n1764500000,1,1\n7,1,1\n", "line 3"),
    (
        "m.jsonl",
        '{"timestamp": 3, "input_length": 1, "output_length": 1}\n'
        '{"timestamp": 1764500000000, "input_length": 1, "output_length": 1}\n',
        "line 2",
    ),
]


@pytest.mark.parametrize(("name", "content", "place"), GAPS)
def test_two_clocks_in_one_column(
    name: str, content: str, place: str, written: Callable, refused: Callable
) -> None:
    message = refused(written(name, content))
    assert place in message
    assert "two clocks" in message


def test_an_idle_year_is_one_clock(written: Callable) -> None:
    year_s = 366 * 86_400
    path = written("p.csv", f"arrival_s,prompt_tokens,output_tokens\n0,1,1\n{year_s},1,1\n")
    assert load_trace(path).arrival_ns.tolist() == [0, year_s * 10**9]


@pytest.mark.parametrize(
    ("unit", "value", "word"),
    [
        ("s", "1764500000000", "milliseconds"),
        ("s", "1764500000000000", "microseconds"),
        ("ms", "1764500000000000", "microseconds"),
        ("ms", "1764500000000000000", "nanoseconds"),
    ],
)
def test_an_epoch_of_a_finer_unit(
    unit: str, value: str, word: str, written: Callable, refused: Callable
) -> None:
    message = refused(written("p.csv", f"arrival_{unit},prompt_tokens,output_tokens\n{value},1,1\n"))
    assert "line 2" in message
    assert value in message
    assert f"{word} since 1970?" in message
