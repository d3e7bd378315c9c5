"""A whole-file JSON list is read as the same rows in JSON lines are."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from simserve.core import Trace
from simserve.workload import load_trace

OWN = [
    {"startTime": "2026-03-01T09:00:00Z", "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
    {"startTime": "2026-03-01T09:00:02.5Z", "usage": {"prompt_tokens": 8, "completion_tokens": 1}},
]
MOONCAKE = [
    {"timestamp": 0, "input_length": 900, "output_length": 30, "hash_ids": [4, 5]},
    {"timestamp": 40, "input_length": 20, "output_length": 3, "hash_ids": [4]},
]
QWEN = [{"chat_id": 3, "timestamp": 1.5, "input_length": 20, "output_length": 3, "hash_ids": [1, 2]}]
WAYS: dict[str, Callable[[object], str]] = {
    "list": json.dumps,
    "indented list": lambda rows: "\n" + json.dumps(rows, indent=2) + "\n",
    "data": lambda rows: json.dumps({"object": "list", "data": rows, "has_more": False}),
    "indented data": lambda rows: json.dumps({"meta": {"page": 1, "data": [1]}, "data": rows}, indent=1),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [OWN, MOONCAKE, QWEN])
def test_lists_are_read_as_lines_are(
    way: str, rows: list[dict], written: Callable, assert_same: Callable[[Trace, Trace], None]
) -> None:
    lines = load_trace(written("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    whole = load_trace(written("rows.json", WAYS[way](rows)))
    assert whole.origin.format == lines.origin.format
    assert_same(whole, lines)


def test_one_object_over_several_lines(written: Callable) -> None:
    trace = load_trace(written("one.json", json.dumps(OWN[0], indent=2)))
    assert trace.prompt_tokens.tolist() == [9]


def test_a_first_line_with_data_is_a_row_if_others_follow(written: Callable) -> None:
    rows = [row | {"data": [1, 2]} for row in OWN]
    trace = load_trace(written("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert trace.prompt_tokens.tolist() == [9, 8]


def test_errors_name_the_line_of_the_element(written: Callable, refused: Callable) -> None:
    rows = [*OWN, OWN[0] | {"usage": {"prompt_tokens": -1, "completion_tokens": 2}}]
    one_a_line = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    message = refused(written("rows.json", one_a_line))
    assert "line 4" in message
    assert "-1" in message


ROW = json.dumps(OWN[0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"[\n{ROW},\n{ROW}", ["line 3", "not JSON"]),
        (f"[\n{ROW}\n{ROW}]", ["line 3", "','"]),
        (f"[{ROW},]", ["line 1", "not JSON"]),
        (f"[{ROW}]\n{ROW}", ["line 2", "not JSON"]),
        (f'{{"data": [{ROW}]', ["line 1", "not JSON"]),
        (f"[\n{ROW},\n7]", ["line 3", "a JSON object is expected, not 7"]),
    ],
)
def test_damaged_lists(text: str, words: list[str], written: Callable, refused: Callable) -> None:
    message = refused(written("rows.json", text))
    assert all(word in message for word in words), message


def test_an_empty_list_is_no_trace(written: Callable, refused: Callable) -> None:
    assert "no request" in refused(written("rows.json", "[]"), format="columns")
