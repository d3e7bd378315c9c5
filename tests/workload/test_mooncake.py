"""Mooncake JSONL: wide ids, ids against lengths, sessions with history (known failures C4, C6, D3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from simserve.workload import load_trace, stats


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(ids: list[Any], tokens: int | None = None, **more: Any) -> dict[str, Any]:
    tokens = 512 * len(ids) if tokens is None else tokens
    return {"timestamp": 0, "input_length": tokens, "output_length": 5, "hash_ids": ids} | more


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 1 + 2**32),
        (7, 7 + 2**31),
        (5, 5 + 2**64),
        (10**18, 10**18 + 2**33),
        (10**30, 10**30 + 2**64),
        (-1, 2**64 - 1),
        ("12", 12),
        ("aa", "aA"),
    ],
)
def test_ids_that_differ_anywhere_never_hit(written: Callable, first: Any, second: Any) -> None:
    trace = load_trace(written("wide.jsonl", lines(row([first]), row([second]), row([first]))))
    assert trace.block_ids.tolist() == [0, 1, 0]
    assert stats(trace).prefix.requests_with_hit == 1


def test_counts_that_disagree_are_named(written: Callable, refused: Callable) -> None:
    message = refused(written("c6.jsonl", lines(row([1, 2], tokens=20))))
    assert "line 1: hash_ids has 2 ids" in message
    assert "20 tokens in blocks of 512 has 1, or 0 if only full blocks have ids" in message
    good = [row([i, 100 + i]) for i in range(30)]
    message = refused(written("c6.jsonl", lines(*good, row([1], tokens=1300), *good)))
    assert "line 31: hash_ids has 1 ids" in message
    assert "has 3, or 2" in message


def test_tolerant_mode_cuts_and_counts(written: Callable) -> None:
    path = written("t.jsonl", lines(row([1, 2], tokens=20), row([1, 3, 4]), row([9], tokens=2000)))
    trace = load_trace(path, tolerant=True)
    assert trace.block_offsets.tolist() == [0, 1, 4, 5]
    assert "1 rows with more hash_ids than blocks: cut" in trace.origin.changes
    assert "1 rows with fewer hash_ids than blocks: kept" in trace.origin.changes


def test_full_and_partial_use_of_an_id_are_told_apart(written: Callable) -> None:
    trace = load_trace(
        written("p.jsonl", lines(row([1, 2], tokens=600), row([1, 2, 3]), row([1, 2], tokens=600)))
    )
    a, b, c = (trace.block_ids[i:j].tolist() for i, j in ((0, 2), (2, 5), (5, 7)))
    assert a == c
    assert a[0] == b[0]
    assert a[1] != b[1]
    assert any("line 2" in change for change in trace.origin.changes)


def test_ids_of_contents_become_prefixes(written: Callable) -> None:
    """The same content after different beginnings is not a common prefix."""
    trace = load_trace(written("x.jsonl", lines(row([1, 9]), row([2, 9]), row([1, 9]))))
    assert trace.block_ids.tolist() == [0, 1, 2, 3, 0, 1]
    assert any("chained" in note for note in trace.origin.assumptions)


def test_block_size_is_inferred_only_from_many_rows(written: Callable, refused: Callable) -> None:
    rows = [row(list(range(100 * i, 100 * i + 3)), tokens=48 + i) for i in range(12)]
    trace = load_trace(written("b.jsonl", lines(*rows)))
    assert trace.block_tokens == 16
    assert any("inferred" in note for note in trace.origin.assumptions)
    assert "512" in refused(written("b.jsonl", lines(*rows[:3])))
    assert load_trace(written("b.jsonl", lines(*rows[:3])), block_tokens=16).block_tokens == 16


def test_turns_carry_history(written: Callable) -> None:
    """The example of the format: turns of 900 + 120 tokens, an answer of 30 between, a pause of 2.5 s."""
    path = written(
        "s.jsonl",
        lines(
            {
                "session_id": "s1",
                "timestamp": 0,
                "input_length": 900,
                "output_length": 30,
                "hash_ids": [4, 5],
            },
            {"session_id": "s1", "delay": 2500, "input_length": 120, "output_length": 60, "hash_ids": [6]},
            {
                "session_id": "s2",
                "timestamp": 1000,
                "input_length": 600,
                "output_length": 1,
                "hash_ids": [4, 8],
            },
        ),
    )
    trace = load_trace(path)
    assert trace.arrival_ns.tolist() == [0, 10**9, 2_500_000_000]
    assert trace.session.tolist() == [0, 1, 0]
    assert trace.prompt_tokens.tolist() == [900, 600, 1050]
    assert trace.think_ns.tolist() == [0, 0, 2_500_000_000]
    first, other, later = (trace.block_ids[a:b].tolist() for a, b in ((0, 2), (2, 4), (4, 7)))
    assert first[0] == other[0] == later[0]
    assert len({first[1], other[1], later[1], later[2]}) == 4
    assert load_trace(path, turns="whole").prompt_tokens.tolist() == [900, 600, 120]


def test_recorded_stamps_of_turns_stay_open_loop(written: Callable) -> None:
    turns = [row([1], session_id="a"), row([2], session_id="a", timestamp=9)]
    trace = load_trace(written("o.jsonl", lines(*turns)))
    assert trace.session is None
    assert trace.labels["session_id"].tolist() == ["a", "a"]
    assert trace.prompt_tokens.tolist() == [512, 512 + 5 + 512]


def test_seconds_and_fractions(written: Callable) -> None:
    rows = lines(row([1], timestamp=0.0), row([1], timestamp=46.926808))
    assert load_trace(written("u.jsonl", rows)).arrival_ns.tolist() == [0, 46_926_808]
    assert load_trace(written("u.jsonl", rows), unit="s").arrival_ns.tolist() == [0, 46_926_808_000]


def test_encodings(written: Callable) -> None:
    clean = lines(row([1], timestamp=1), row([2], timestamp=2))
    variants = (
        "\ufeff" + clean,
        clean.replace("\n", "\r\n"),
        clean + "\n\n",
        clean.rstrip(),
        clean.replace("512", '"512"'),
    )
    for content in variants:
        trace = load_trace(written("e.jsonl.gz", content))
        assert trace.arrival_ns.tolist() == [0, 1_000_000]
        assert trace.prompt_tokens.tolist() == [512, 512]


@pytest.mark.parametrize(
    ("bad", "parts"),
    [
        ('{"timestamp": null, "input_length": 1, "output_length": 1}', ("timestamp", "null")),
        ('{"input_length": 1, "output_length": 1}', ("timestamp", "missing")),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', ("timestamp", "NaN")),
        ('{"timestamp": Infinity, "input_length": 1, "output_length": 1}', ("timestamp", "Infinity")),
        ('{"timestamp": -5, "input_length": 1, "output_length": 1}', ("timestamp", "-5")),
        ('{"timestamp": 1e300, "input_length": 1, "output_length": 1}', ("timestamp", "1E+300")),
        ('{"timestamp": true, "input_length": 1, "output_length": 1}', ("timestamp", "true")),
        ('{"timestamp": 1, "input_length": 1e3, "output_length": 1}', ("input_length", "1E+3")),
        ('{"timestamp": 1, "input_length": 1.5, "output_length": 1}', ("input_length", "1.5")),
        ('{"timestamp": 1, "input_length": -1, "output_length": 1}', ("input_length", "-1")),
        (
            '{"timestamp": 1, "input_lenght": 1, "output_length": 1}',
            ("input_length", "did you mean 'input_lenght'"),
        ),
        ('{"timestamp": 1, "input_length": 1', ("not JSON",)),
        ("[1, 2]", ("JSON object",)),
        ('{"timestamp": ' + "9" * 5000 + ', "input_length": 1, "output_length": 1}', ("cannot be read",)),
    ],
)
def test_bad_rows_are_named(written: Callable, refused: Callable, bad: str, parts: tuple) -> None:
    good = '{"timestamp": 100, "input_length": 5, "output_length": 1}\n'
    message = refused(written("bad.jsonl", good + "\n" + bad + "\n" + good))
    assert "line 3:" in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("ids", [[1.5], "12", [None], [[1]], None])
def test_bad_ids_are_named(written: Callable, refused: Callable, ids: Any) -> None:
    message = refused(written("bad.jsonl", lines(row([1]), row([1]) | {"hash_ids": ids})))
    assert "line 2: field hash_ids is" in message
    assert "a list of" in message


def test_falling_stamps_are_sorted_and_counted(written: Callable) -> None:
    rows = lines(row([1], timestamp=30), row([2], timestamp=10), row([3], timestamp=30))
    trace = load_trace(written("f.jsonl", rows))
    assert trace.arrival_ns.tolist() == [0, 20_000_000, 20_000_000]
    assert trace.block_ids.tolist() == [0, 1, 2]
    assert any(change.startswith("1 rows came earlier") for change in trace.origin.changes)
