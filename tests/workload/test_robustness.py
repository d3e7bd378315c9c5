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
