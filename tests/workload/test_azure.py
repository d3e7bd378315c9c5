"""Azure CSV: stamps exact to the last decimal, and odd but legal encodings (known failures D1, D7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simserve.workload import load_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = "2023-11-16 18:15:46.0010000,374,44\n2023-11-16 18:15:46.0020001,396,109\n"


def test_milliseconds_survive(written: Callable) -> None:
    stamps = ["2023-11-16 18:00:00.0010000", "2023-11-16 18:00:00.0020000"]
    stamps += ["2023-11-16 18:00:00.0090000", "2023-11-16 18:00:00.0110000"]
    path = written("a.csv", HEADER + "".join(f"{stamp},5,6\n" for stamp in stamps))
    assert load_trace(path).arrival_ns.tolist() == [0, 1_000_000, 8_000_000, 10_000_000]


def test_all_seven_decimals_survive_late_in_the_century(written: Callable) -> None:
    rows = (
        "2099-12-31 23:59:59.9999998,1,1\n2099-12-31 23:59:59.9999999,1,1\n2100-01-01 00:00:00.0000000,1,1\n"
    )
    assert load_trace(written("a.csv", HEADER + rows)).arrival_ns.tolist() == [0, 100, 200]


def test_stamps_with_zones(written: Callable) -> None:
    rows = "2024-05-10 00:00:00.009930+00:00,2,3\n2024-05-10 02:00:01.009931+02:00,2,3\n"
    assert load_trace(written("a.csv", HEADER + rows)).arrival_ns.tolist() == [0, 1_000_001_000]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bom.csv", "\ufeff" + HEADER + ROWS),
        ("crlf.csv", (HEADER + ROWS).replace("\n", "\r\n")),
        ("no_final_newline.csv", (HEADER + ROWS).rstrip("\n")),
        ("blank_lines.csv", "\n" + HEADER + ROWS + "\n\n"),
        ("quoted.csv", HEADER + ROWS.replace("374,44", '"374","44"')),
        ("compressed.csv.gz", HEADER + ROWS),
        ("gzip_without_the_name.csv.gz", HEADER + ROWS),
        ("everything.csv.gz", "\ufeff" + (HEADER + ROWS).replace("\n", "\r\n").rstrip()),
    ],
)
def test_encodings_change_nothing(written: Callable, name: str, content: str) -> None:
    path = written(name, content)
    if name.startswith("gzip_without"):
        path = path.rename(path.with_name("plain_name.csv"))
    trace = load_trace(path)
    assert trace.arrival_ns.tolist() == [0, 1_000_100]
    assert trace.prompt_tokens.tolist() == [374, 396]
    assert trace.output_tokens.tolist() == [44, 109]
    assert trace.origin.format == "azure"


def test_one_row_is_a_trace(written: Callable) -> None:
    assert len(load_trace(written("a.csv", HEADER + "2023-11-16 18:15:46.0010000,374,44"))) == 1


def test_odd_rows_are_kept_and_counted(written: Callable) -> None:
    rows = "2023-11-16 18:00:01.0,7,0\n2023-11-16 18:00:00.0,0,5\n2023-11-16 18:00:01.0,8,1\n"
    trace = load_trace(written("a.csv", HEADER + rows))
    assert trace.prompt_tokens.tolist() == [0, 7, 8]
    assert trace.arrival_ns.tolist() == [0, 10**9, 10**9]
    assert trace.origin.changes == (
        "1 rows came earlier than the row before: sorted, equal stamps in file order",
        "1 requests with an empty prompt: kept",
        "1 requests with no output: kept",
    )


def test_nothing_is_cut_however_long(written: Callable) -> None:
    """Known failure D5: no silent limit on lengths."""
    trace = load_trace(written("a.csv", HEADER + "2023-11-16 18:00:01.0,2147483647,5000\n"))
    assert trace.prompt_tokens.tolist() == [2147483647]
    assert trace.origin.changes == ()


STAMP = "column TIMESTAMP"
LENGTH = "column ContextTokens"


@pytest.mark.parametrize(
    ("row", "line", "parts"),
    [
        ("2023-13-16 18:00:00.0,1,1", 3, (STAMP, "2023-13-16")),
        (",1,1", 3, (STAMP, "missing")),
        ("nan,1,1", 3, (STAMP, "'nan'")),
        ("-5,1,1", 3, (STAMP, "'-5'")),
        ("2023-11-16 18:00:00.0,1e3,1", 3, (LENGTH, "'1e3'", "digits only")),
        ("2023-11-16 18:00:00.0,-7,1", 3, (LENGTH, "'-7'")),
        ("2023-11-16 18:00:00.0,,1", 3, (LENGTH, "missing")),
        ("2023-11-16 18:00:00.0,12.0,1", 3, (LENGTH, "'12.0'")),
        ("2023-11-16 18:00:00.0,NaN,1", 3, (LENGTH, "'NaN'")),
        ("2023-11-16 18:00:00.0,99999999999999999999,1", 3, (LENGTH, "99999999999999999999")),
        ("2023-11-16 18:00:00.0,1", 3, ("2 columns", "3")),
        ("\n\n2023-11-16 18:00:00.0,x,1", 5, (LENGTH, "'x'")),
    ],
)
def test_bad_rows_are_named(written: Callable, refused: Callable, row: str, line: int, parts: tuple) -> None:
    message = refused(written("bad.csv", HEADER + "2023-11-16 17:00:00.0,1,1\n" + row + "\n"))
    assert f"line {line}:" in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("content", ["", "\n\n", HEADER, "\ufeff"])
def test_empty_files_are_said_to_be_empty(written: Callable, refused: Callable, content: str) -> None:
    assert "at least one" in refused(written("empty.csv", content))


def test_wrong_files(written: Callable, refused: Callable, tmp_path) -> None:
    assert "unknown trace format" in refused(written("x.csv", "a,b\n1,2\n"))
    assert "damaged gzip" in refused(written("x.csv", b"\x1f\x8bnonsense"))
    assert "line 2: byte" in refused(written("x.jsonl", b'{"input_length": 1}\n{"\xff": 1}\n'))
    assert "appears twice" in refused(written("x.csv", HEADER.replace("\n", ",TIMESTAMP\n") + "1,2,3,4\n"))
    written("spelled.csv", HEADER + ROWS)
    assert "did you mean 'spelled.csv'" in refused(tmp_path / "speled.csv")
    assert "is a folder" in refused(tmp_path)
    assert "no option 'unit'" in refused(tmp_path / "spelled.csv", unit="ms")


def test_naming_the_wrong_format(written: Callable, refused: Callable) -> None:
    path = written("x.csv", HEADER + ROWS)
    assert "no column num_prefill_tokens" in refused(path, format="vidur")
    assert "line 1: not JSON" in refused(path, format="mooncake")


@pytest.mark.parametrize(
    ("first", "second", "has"), [("Z", "", "a"), ("", "+00:00", "no"), ("-05:00", "", "a")]
)
def test_a_zone_in_some_rows_only(
    first: str, second: str, has: str, written: Callable, refused: Callable
) -> None:
    rows = f"2023-11-16 18:00:00{first},1,1\n2023-11-16 18:00:01{second},1,1\n"
    message = refused(written("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows))
    assert "line 3" in message
    assert f"has {has} time zone" in message


def test_images_cost_nothing_and_are_counted(written: Callable) -> None:
    rows = "2025-01-01 00:00:00,9,1,3\n2025-01-01 00:00:01,9,1,0\n2025-01-01 00:00:02,9,1,2\n"
    trace = load_trace(written("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens,NumImages\n" + rows))
    assert any(note.startswith("5 images in 2 requests (NumImages)") for note in trace.origin.assumptions)
