"""Wrong input of every kind ends with 2, one line that says what and where, and nothing written."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 09:00:00.0000000,100,10\n"

TRACES = {
    # name: (content, words of the message)
    "empty": (b"", ["empty"]),
    "blank": (b"\n\n", ["empty"]),
    "header-only": (AZURE.encode(), ["at least one"]),
    "nan-length": ((AZURE + ROW + "2023-11-16 09:00:01.0000000,nan,10\n").encode(), ["line 3", "nan"]),
    "nan-time": ((AZURE + ROW + "nan,100,10\n").encode(), ["line 3", "nan"]),
    "negative": ((AZURE + "2023-11-16 09:00:01.0000000,-5,10\n").encode(), ["line 2", "-5"]),
    "missing": ((AZURE + ROW + "2023-11-16 09:00:01.0000000,,10\n").encode(), ["line 3"]),
    "short-row": ((AZURE + "2023-11-16 09:00:01.0000000,5\n").encode(), ["line 2"]),
    "broken-gzip": (gzip.compress((AZURE + ROW).encode())[:-9], ["gzip"]),
    "no-text": (b"\xff\xfe\x00\x01", ["t.csv"]),
    "no-trace": (b"hello\nworld\n", ["hello"]),
    "mooncake-nan": (
        b'{"timestamp": NaN, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n',
        ["line 1"],
    ),
    "mooncake-ids": (  # 20 tokens are one block of 512, not two
        b'{"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [1, 2]}\n',
        ["line 1", "2"],
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_a_wrong_trace(small: Path, simserve: Call, name: str) -> None:
    content, words = TRACES[name]
    Path("t.csv").write_bytes(content)
    done = simserve("run", small, "--set", "workload.synthetic=null", "--set", "workload.trace=t.csv")
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in [*words, "t.csv"]), done.stderr
    assert not Path("reports").exists()


OPTIONS = [
    ("nonsense", ["nonsense", "path=value"]),
    ("pools.3.tp=2", ["pools.3.tp=2", "0 to 0"]),
    ("pools.first.tp=2", ["pools.first.tp=2", "'first'"]),
    ("pools.0.tp=two", ["pools[0].tp", "'two'", "integer"]),
    ("workload.limit=[1", ["workload.limit=[1", "not valid YAML"]),
    ("workload.limit=0", ["workload.limit", "0", "greater than or equal to 1"]),
    ("engine.max_num_seq=4", ["did you mean 'max_num_seqs'"]),
    ("model=llama-3.1-70b", ["does not fit on h100_sxm", "tp 2"]),
    ("workload.window_s=[5, 2]", ["window_s", "[5.0, 2.0]"]),
    ("workload.window_s=[1000, 2000]", ["none of the 40"]),
    ("workload.trace=x.csv", ["exactly one of trace and synthetic"]),
    ("profiles=[nowhere]", ["profiles[0]", "nowhere"]),
    ("seed.x=1", ["seed.x=1", "nothing inside"]),
    ("name.x=1", ["name.x=1", "nothing inside"]),
]


@pytest.mark.parametrize(("option", "words"), OPTIONS, ids=[option for option, _ in OPTIONS])
def test_a_wrong_option(small: Path, simserve: Call, option: str, words: list[str]) -> None:
    done = simserve("run", small, "--set", option)
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert not Path("reports").exists()


def test_a_trace_that_is_not_there(small: Path, simserve: Call) -> None:
    done = simserve("run", small, "--set", "workload.synthetic=null", "--set", "workload.trace=no.csv")
    assert done.exit_code == 2
    assert "no.csv" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_public_trace_that_was_not_fetched(small: Path, simserve: Call) -> None:
    done = simserve("run", "scenarios/azure_conv.yaml")
    assert done.exit_code == 2
    assert "simserve trace fetch azure-2023-conv" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_scenario(small: Path, simserve: Call) -> None:
    done = simserve("run", "scenarios/demoo.yaml")
    assert done.exit_code == 2
    assert done.stderr.startswith("scenarios/demoo.yaml: no such scenario file")
    assert "did you mean 'scenarios/demo.yaml'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_as_scenario(small: Path, simserve: Call) -> None:
    done = simserve("run", small.parent)
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
