"""Columns by their buffers say what pyarrow's own conversions say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simserve import arrow

INTS = pa.chunked_array([pa.array([1, None, 3]), pa.array([4, 5]), pa.array([], pa.int64())])
FLOATS = pa.chunked_array([pa.array([0.5, None]), pa.array([1.5])])
FLAGS = pa.chunked_array([pa.array([True, False, None, True] * 5)])
WORDS = pa.chunked_array([pa.array(["a", None, "ü", "a"]).dictionary_encode()])
CUTS = (slice(0, None), slice(1, None), slice(2, 4), slice(3, 3))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("column", [INTS, FLOATS, FLAGS], ids=["ints", "floats", "flags"])
def test_numbers_and_floats(column: pa.ChunkedArray, cut: slice) -> None:
    part = column[cut]
    assert arrow.numbers(part, 0).tolist() == [value or 0 for value in part.to_pylist()]
    wanted = [np.nan if value is None else float(value) for value in part.to_pylist()]
    np.testing.assert_array_equal(arrow.floats(part), wanted)


@pytest.mark.parametrize("cut", CUTS)
def test_words(cut: slice) -> None:
    part = WORDS[cut]
    assert arrow.objects(part).tolist() == part.to_pylist()
    assert arrow.equals(part, "ü").tolist() == [word == "ü" for word in part.to_pylist()]
    plain = pa.chunked_array([pa.array(part.to_pylist(), pa.string())])
    assert arrow.equals(plain, "a").tolist() == [word == "a" for word in part.to_pylist()]


def test_columns_are_those_of_pyarrow() -> None:
    absent = np.array([False, True, False])
    for values in (np.array([1, 2, 3]), np.array([0.5, 1.5, 2.5]), np.array([True, True, False])):
        assert arrow.column(values, absent).equals(pa.array(values, mask=absent))
        assert arrow.column(values).equals(pa.array(values))
        assert arrow.column(values[:0]).equals(pa.array(values[:0]))
    found = arrow.indexed(np.array([1, -1, 0]), ["ä", "b"])
    assert found.to_pylist() == ["b", None, "ä"]
    assert arrow.texts([]).equals(pa.array([], pa.string()))


def test_rows_are_those_of_a_filter(tmp_path: Path) -> None:
    size = 4
    table = pa.table(
        {
            "ints": pa.array([1, None, 3, 4]),
            "words": pa.array(["a", None, "ü", "a"]).dictionary_encode(),
            "text": pa.array(["x", "y", None, "z"]),
            "nothing": pa.nulls(size, pa.bool_()),
        }
    )
    chosen = np.array([True, True, False, True])
    wanted = table.filter(pa.array(chosen)).to_pylist()
    assert arrow.rows(table, chosen).to_pylist() == wanted
    pq.write_table(table, tmp_path / "table.parquet")
    stored = arrow.read_table(tmp_path / "table.parquet")
    assert stored.to_pylist() == table.to_pylist()
    assert arrow.objects(stored["text"]).tolist() == ["x", "y", None, "z"]
    assert arrow.rows(stored, chosen).to_pylist() == wanted
