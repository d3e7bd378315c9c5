"""Every reader against broken files: read exactly, or refused with file, row, value and way out.

Each format has a good file of three requests. A *fault* makes a bad one of it and names what the message must
say; a *dress* changes how it is written, and the same requests must come out.
"""

from __future__ import annotations

import codecs
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.workload import load_trace
from simserve.workload.formats.base import READERS

Row = list[Any]
STAMPS = ["2026-03-01T09:00:00Z", "2026-03-01T09:00:01Z", "2026-03-01T09:00:02Z"]
SECONDS = ["5", "5.25", "6"]
LENGTHS = [(512, 64), (95, 7), (90, 8)]

TABLES: dict[str, tuple[list[str], list[str]]] = {
    "plain": (["arrival_s", "prompt_tokens", "output_tokens"], SECONDS),
    "columns": (["created_at", "input_tokens", "completion_tokens"], STAMPS),
    "azure": (["TIMESTAMP", "ContextTokens", "GeneratedTokens"], [s[:19].replace("T", " ") for s in STAMPS]),
    "burstgpt": (["Timestamp", "Request tokens", "Response tokens"], SECONDS),
    "vidur": (["arrived_at", "num_prefill_tokens", "num_decode_tokens"], SECONDS),
    "litellm": (["startTime", "prompt_tokens", "completion_tokens", "spend"], STAMPS),
}


def _batch(time: Any, prompt: Any, output: Any, i: int) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    return {"custom_id": f"c{i}", "response": {"status_code": 200, "body": {"usage": usage}}}


def _otlp(time: Any, prompt: Any, output: Any, i: int) -> dict[str, Any]:
    counts = {"input_tokens": prompt, "output_tokens": output}
    attributes = [{"key": f"gen_ai.usage.{key}", "value": {"intValue": n}} for key, n in counts.items()]
    span = {"spanId": f"s{i}", "startTimeUnixNano": time, "attributes": attributes}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def _share(time: Any, prompt: Any, output: Any, i: int) -> dict[str, Any]:
    texts = [" ".join(["w"] * n) if type(n) is int and 0 <= n < 1000 else n for n in (prompt, output)]
    return {
        "conversations": [{"from": who, "value": t} for who, t in zip(("human", "gpt"), texts, strict=True)]
    }


def _chat(time: Any, prompt: Any, output: Any, i: int) -> dict[str, Any]:
    texts = [part["value"] for part in _share(time, prompt, output, i)["conversations"]]
    return {"messages": [{"role": "user", "content": texts[0]}, {"role": "assistant", "content": texts[1]}]}


OBJECTS: dict[str, tuple[Callable[[Any, Any, Any, int], dict[str, Any]], list[Any]]] = {
    "mooncake": (
        lambda t, p, o, i: {"timestamp": t, "input_length": p, "output_length": o, "hash_ids": [i]},
        [0, 250, 500],
    ),
    "qwen-bailian": (
        lambda t, p, o, i: {"chat_id": i, "timestamp": t, "input_length": p, "output_length": o},
        [0, 0.25, 0.5],
    ),
    "llmservingsim": (
        lambda t, p, o, i: {"arrival_time_ns": t, "input_toks": p, "output_toks": o},
        [0, 1, 2],
    ),
    "openai_batch": (_batch, [None] * 3),
    "langfuse": (
        lambda t, p, o, i: {
            "id": f"a{i}",
            "traceId": "t",
            "startTime": t,
            "usageDetails": {"input": p, "output": o},
        },
        STAMPS,
    ),
    "otlp": (_otlp, [str(1772355600000000000 + i * 10**9) for i in range(3)]),
    "columns": (
        lambda t, p, o, i: {"ts": t, "usage": {"prompt_tokens": p, "completion_tokens": o}},
        STAMPS,
    ),
    "sharegpt": (_share, [None] * 3),
    "openai_messages": (_chat, [None] * 3),
}
TEXTS = ("sharegpt", "openai_messages")
OPTIONS: dict[str, dict[str, Any]] = {name: {"tokens_per_word": 1.0, "rate": 1} for name in TEXTS}
WITHOUT_TIMES = ("openai_batch", *TEXTS)


def csv_of(header: list[str], rows: list[Row], end: str = "\n", comma: str = ",") -> str:
    return "".join(comma.join(map(str, row)) + end for row in [header, *rows])


def rows_of(format: str) -> list[Row]:
    header, times = TABLES[format]
    rest = ["0.1"] * (len(header) - 3)
    return [[time, p, o, *rest] for time, (p, o) in zip(times, LENGTHS, strict=True)]


def objects_of(format: str, changes: dict[int, Any] | None = None) -> list[dict[str, Any]]:
    """Return a file's rows; `changes` replaces time (0), prompt (1) or output (2) of the second."""
    make, times = OBJECTS[format]
    rows = [[time, p, o] for time, (p, o) in zip(times, LENGTHS, strict=True)]
    for place, value in (changes or {}).items():
        rows[1][place] = value
    return [make(time, prompt, output, i) for i, (time, prompt, output) in enumerate(rows)]


def lines_of(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def assert_refused(tmp_path: Path) -> Callable[..., str]:
    """Check that the command refuses a file with exit code 2 in one paragraph, and return its message."""

    def check(data: str | bytes, format: str, *words: str, name: str = "broken.txt") -> str:
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        options = [f"-o{key}={value}" for key, value in OPTIONS.get(format, {}).items()]
        done = CliRunner().invoke(app, ["trace", "show", str(path), *options])
        message = done.stderr
        assert done.exit_code == 2, done.output
        assert message.count("\n") == 1, message
        assert "Traceback" not in message
        assert name in message
        for word in words:
            assert word in message, message
        assert "allowed" in message or "at least one" in message or ": " in message
        return message

    return check


# ---- tables

CELLS: dict[str, tuple[int, str]] = {
    "nan": (1, "NaN"),
    "infinite": (1, "inf"),
    "negative": (1, "-5"),
    "huge": (1, "9" * 25),
    "above 2^31": (1, "3000000000"),
    "float": (1, "95.5"),
    "exponent": (1, "1e3"),
    "underscore": (1, "1_000"),
    "arabic digits": (1, "١٢"),
    "text": (1, "many"),
    "null": (1, "null"),
    "thousands": (1, '"1,000"'),
    "output nan": (2, "NaN"),
    "output float": (2, "7.5"),
    "output negative": (2, "-1"),
    "time nan": (0, "NaN"),
    "time infinite": (0, "inf"),
    "time negative": (0, "-5"),
    "time huge": (0, "9" * 25),
    "time text": (0, "yesterday"),
    "time slashed": (0, "03/01/2026 09:00"),
}


@pytest.mark.parametrize("format", TABLES)
@pytest.mark.parametrize("cell", CELLS)
def test_a_cell(format: str, cell: str, assert_refused: Callable) -> None:
    place, value = CELLS[cell]
    header, rows = TABLES[format][0], rows_of(format)
    rows[1][place] = value
    shown = value.strip('"') if len(value) < 50 else value[:20]
    assert_refused(csv_of(header, rows), format, "line 3:", header[place], shown, "allowed")


@pytest.mark.parametrize("format", TABLES)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_empty_cell(format: str, place: int, assert_refused: Callable) -> None:
    header, rows = TABLES[format][0], rows_of(format)
    rows[1][place] = ""
    assert_refused(csv_of(header, rows), format, "line 3:", header[place], "is missing", "allowed")


@pytest.mark.parametrize("format", TABLES)
def test_two_clocks(format: str, assert_refused: Callable) -> None:
    header, rows = TABLES[format][0], rows_of(format)
    rows[1][0] = "1764500001" if TABLES[format][1] is SECONDS else rows[1][0].replace("2026", "1971")
    assert_refused(csv_of(header, rows), format, "line 3:", "two clocks")


@pytest.mark.parametrize("format", ["columns", "azure", "litellm"])
def test_zones_in_some_rows_only(format: str, assert_refused: Callable) -> None:
    header, rows = TABLES[format][0], rows_of(format)
    rows[1][0] = rows[1][0].removesuffix("Z") + ("" if rows[1][0].endswith("Z") else "+01:00")
    assert_refused(csv_of(header, rows), format, "line 3:", "time zone", "allowed")


HEADERS: dict[str, tuple[Callable[[list[str], list[Row]], str], tuple[str, ...]]] = {
    "header only": (lambda header, rows: csv_of(header, []), ("no rows", "at least one")),
    "no header": (lambda header, rows: csv_of(rows[0], rows[1:]), ("without a header", "allowed")),
    "tabs": (lambda header, rows: csv_of(header, rows, comma="\t"), ("separated by tabs", "commas")),
    "semicolons": (lambda header, rows: csv_of(header, rows, comma=";"), ("semicolons", "commas")),
    "bars": (lambda header, rows: csv_of(header, rows, comma="|"), ("separated by bars", "commas")),
    "comment": (lambda header, rows: "# mine\n" + csv_of(header, rows), ("comment", "# mine", "header")),
    "a name twice": (
        lambda header, rows: csv_of([*header[:2], header[1], *header[3:]], rows),
        ("line 1:", "twice", "allowed"),
    ),
    "short row": (
        lambda header, rows: csv_of(header, [rows[0], rows[1][:2], rows[2]]),
        ("line 3:", "2 columns", "allowed"),
    ),
    "long row": (
        lambda header, rows: csv_of(header, [rows[0], [*rows[1], 9], rows[2]]),
        ("line 3:", "columns", "allowed"),
    ),
    "sum below": (lambda header, rows: csv_of(header, rows) + "total: 3\n", ("line 5:", "'total: 3'")),
    "header again": (lambda header, rows: csv_of(header, [rows[0], header, *rows[1:]]), ("line 3:",)),
    "open quote": (
        lambda header, rows: csv_of(header, [rows[0], [rows[1][0], '"95', *rows[1][2:]], rows[2]]),
        ("line 4:", "quote", "allowed"),
    ),
    "nul": (lambda header, rows: csv_of(header, rows).replace("95", "9\x005"), ("allowed",)),
}


@pytest.mark.parametrize("format", TABLES)
@pytest.mark.parametrize("fault", HEADERS)
def test_a_table(format: str, fault: str, assert_refused: Callable) -> None:
    make, words = HEADERS[fault]
    assert_refused(make(TABLES[format][0], rows_of(format)), format, *words)


@pytest.mark.parametrize("format", ["plain", "columns"])
@pytest.mark.parametrize("place", [1, 2])
def test_a_misspelt_column_is_guessed(format: str, place: int, assert_refused: Callable) -> None:
    header = list(TABLES[format][0])
    header[place] = header[place].replace("token", "tokken")
    message = assert_refused(csv_of(header, rows_of(format)), format, header[place], "did you mean")
    assert f"did you mean {header[place]!r}?" in message


@pytest.mark.parametrize("format", TABLES)
def test_a_column_is_missing(format: str, assert_refused: Callable) -> None:
    header, rows = TABLES[format][0], rows_of(format)
    left = [0, 1, *range(3, len(header))]
    assert_refused(
        csv_of([header[i] for i in left], [[row[i] for i in left] for row in rows]), format, *header[:2]
    )


DRESSES: dict[str, Callable[[list[str], list[Row]], str]] = {
    "byte order mark": lambda header, rows: "\ufeff" + csv_of(header, rows),
    "CRLF": lambda header, rows: csv_of(header, rows, end="\r\n"),
    "blank lines": lambda header, rows: "\n" + csv_of(header, rows, end="\n\n"),
    "quotes": lambda header, rows: csv_of(*_quoted(header, rows)),
    "unsorted": lambda header, rows: csv_of(header, rows[::-1]),
    "no last line end": lambda header, rows: csv_of(header, rows)[:-1],
    "columns in another order": lambda header, rows: csv_of(header[::-1], [row[::-1] for row in rows]),
}


def _quoted(header: list[str], rows: list[Row]) -> tuple[list[str], list[Row]]:
    return [f'"{name}"' for name in header], [[f'"{value}"' for value in row] for row in rows]


@pytest.mark.parametrize("format", TABLES)
@pytest.mark.parametrize("dress", DRESSES)
def test_a_dressed_table(format: str, dress: str, written: Callable) -> None:
    trace = load_trace(written("t.csv", DRESSES[dress](TABLES[format][0], rows_of(format))))
    assert trace.origin.format == format
    assert list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)) == LENGTHS
    assert any("sorted" in line for line in trace.origin.changes) == (dress == "unsorted")


# ---- JSON

VALUES: dict[str, tuple[int, Any, str]] = {
    "nan": (1, float("nan"), "NaN"),
    "infinite": (1, float("inf"), "Infinity"),
    "negative": (1, -5, "-5"),
    "huge": (1, 10**25, "1000000"),
    "float": (1, 95.5, "95.5"),
    "null": (1, None, "null"),
    "true": (1, True, "true"),
    "text": (1, "many", "many"),
    "list": (1, [1], "[1]"),
    "object": (1, {"a": 1}, ""),
    "output negative": (2, -1, "-1"),
    "output null": (2, None, "null"),
    "time nan": (0, float("nan"), "NaN"),
    "time negative": (0, -5, "-5"),
    "time huge": (0, 10**30, "1000000"),
    "time null": (0, None, ""),
    "time text": (0, "yesterday", "yesterday"),
    "time true": (0, True, ""),
    "time list": (0, [1], ""),
}


def _can_be_wrong(format: str, place: int, shown: str) -> bool:
    """Whether a format has the field, and the value is wrong there (text is the good value of a text)."""
    if place == 0:
        return format not in WITHOUT_TIMES
    if format not in TEXTS:
        return True
    return shown not in ("NaN", "Infinity", "many", "[1]") and (format, shown) != ("openai_messages", "null")


BAD_VALUES = [
    (format, fault)
    for format in OBJECTS
    for fault, (place, _, shown) in VALUES.items()
    if _can_be_wrong(format, place, shown)
]


@pytest.mark.parametrize(("format", "fault"), BAD_VALUES)
def test_a_value(format: str, fault: str, assert_refused: Callable) -> None:
    place, value, shown = VALUES[fault]
    words = ("line 2:", "allowed") if format in TEXTS else ("line 2:", shown, "allowed")
    assert_refused(lines_of(objects_of(format, {place: value})), format, *words)


def _cut(text: str, n: int) -> str:
    return text[: len(text.rstrip()) - n]


JSONS: dict[str, tuple[Callable[[list[Any]], str | bytes], tuple[str, ...]]] = {
    "cut off": (lambda rows: _cut(lines_of(rows), 9), ("line 3:", "not JSON", "allowed")),
    "list cut off": (lambda rows: _cut(json.dumps(rows, indent=1), 9), ("line", "not JSON", "allowed")),
    "list not closed": (lambda rows: json.dumps(rows)[:-1], ("not JSON", "allowed")),
    "comma at the end": (lambda rows: json.dumps(rows)[:-1] + ",]", ("not JSON", "allowed")),
    "commas between lines": (
        lambda rows: ",\n".join(map(json.dumps, rows)),
        ("not JSON", "Extra data", "allowed"),
    ),
    "single quotes": (lambda rows: "\n".join(map(str, rows)), ("not JSON", "allowed")),
    "words between": (lambda rows: lines_of(rows[:2]) + "oops\n", ("line 3:", "'oops'", "allowed")),
    "list between": (lambda rows: lines_of([*rows[:2], [1]]), ("line 3:", "[1]", "allowed")),
    "null between": (lambda rows: lines_of([*rows[:2], None]), ("line 3:", "null", "allowed")),
    "number in a list": (lambda rows: json.dumps([*rows[:2], 7], indent=0), ("7", "allowed")),
    "latin 1": (lambda rows: lines_of(rows).encode() + b'{"a": "\xe9"}\n', ("line 4:", "UTF-8")),
    "UTF-16": (lambda rows: codecs.BOM_UTF16_LE + lines_of(rows).encode("utf-16-le"), ("UTF-16", "UTF-8")),
    "a key twice": (
        lambda rows: lines_of(rows[:2]) + '{"x": 1, ' + json.dumps(rows[2])[1:-1] + ', "x": 2}\n',
        ("line 3:", "'x' appears twice", "allowed"),
    ),
}


@pytest.mark.parametrize("format", OBJECTS)
@pytest.mark.parametrize("fault", JSONS)
def test_json(format: str, fault: str, assert_refused: Callable) -> None:
    make, words = JSONS[fault]
    assert_refused(make(objects_of(format)), format, *words)


@pytest.mark.parametrize("format", ["mooncake", "qwen-bailian", "llmservingsim", "openai_batch", "columns"])
def test_an_empty_object_between(format: str, assert_refused: Callable) -> None:
    assert_refused(lines_of([*objects_of(format)[:2], {}]), format, "line 3:", "missing", "allowed")


@pytest.mark.parametrize("format", ["llmservingsim", "mooncake"])
def test_two_clocks_in_json(format: str, assert_refused: Callable) -> None:
    late = 1764500001 * (10**9 if format == "llmservingsim" else 1000)
    assert_refused(lines_of(objects_of(format, {0: late})), format, "line 2:", "two clocks")


JSON_DRESSES: dict[str, Callable[[list[Any]], str]] = {
    "list": json.dumps,
    "list over lines": lambda rows: json.dumps(rows, indent=2),
    "data": lambda rows: json.dumps({"data": rows}),
    "byte order mark": lambda rows: "\ufeff" + lines_of(rows),
    "CRLF": lambda rows: lines_of(rows).replace("\n", "\r\n"),
    "blank lines": lambda rows: "\n" + lines_of(rows).replace("\n", "\n\n"),
}


@pytest.mark.parametrize("format", OBJECTS)
@pytest.mark.parametrize("dress", JSON_DRESSES)
def test_dressed_json(format: str, dress: str, written: Callable) -> None:
    path = written("t.json", JSON_DRESSES[dress](objects_of(format)))
    trace = load_trace(path, **OPTIONS.get(format, {}))
    assert trace.origin.format == format
    assert list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)) == LENGTHS


# ---- no trace at all

NOT_TRACES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("empty", "at least one")),
    "blank": (b"\n \n", ("empty", "at least one")),
    "gzip of nothing": (gzip.compress(b""), ("empty", "at least one")),
    "gzip cut off": (gzip.compress(b"a,b\n" * 100)[:-9], ("damaged gzip", "allowed")),
    "binary": (bytes(range(256)) * 5, ("binary", "allowed")),
    "zip": (b"PK\x03\x04" + bytes(100), ("zip", "CSV")),
    "xz": (b"\xfd7zXZ\x00" + bytes(50), ("xz", "gzip or zstd")),
    "bzip2": (b"BZh91AY" + bytes(50), ("bzip2", "gzip or zstd")),
    "parquet": (b"PAR1" + bytes(100), ("damaged Parquet",)),
    "pdf": (b"%PDF-1.4\n", ("PDF", "CSV")),
    "html": (b"<html><body>404</body></html>", ("HTML", "404")),
    "sqlite": (b"SQLite format 3\x00" + bytes(100), ("SQLite", "CSV")),
    "arrow": (b"ARROW1\x00\x00" + bytes(100), ("Arrow", "Parquet")),
    "empty list": (b"[]", ("JSON", "at least one")),
    "empty object": (b"{}", ("JSON", "at least one")),
    "number": (b"42", ("42", "allowed")),
    "string": (b'"hello"', ("hello", "allowed")),
    "list of lists": (b"[[1, 2], [3, 4]]", ("[1, 2]", "allowed")),
    "too deep": (b"[" * 100_000, ("too deep", "allowed")),
    "prose": (b"Dear reader,\nthis is no trace.\n", ("Dear reader", "allowed")),
    "a result of simserve": (b'{"simserve_version": "1", "summary": {}}', ("simserve_version", "allowed")),
}


@pytest.mark.parametrize("kind", NOT_TRACES)
def test_no_trace(kind: str, assert_refused: Callable) -> None:
    data, words = NOT_TRACES[kind]
    assert_refused(data, "", *words)


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("x")
    for name, words in (("", "folder"), ("trase.csv", "did you mean 'trace.csv'")):
        done = CliRunner().invoke(app, ["trace", "show", str(tmp_path / name)])
        assert done.exit_code == 2
        assert words in done.stderr


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
def test_an_unreadable_file() -> None:
    done = CliRunner().invoke(app, ["trace", "show", "/proc/self/mem"])
    assert done.exit_code == 2
    assert "cannot be read" in done.stderr


def test_every_format_is_tried() -> None:
    assert {*TABLES, *OBJECTS} == set(READERS)
