"""Arrow columns from and to numpy arrays by their buffers, and Parquet files of them.

pyarrow's own ways (`pa.array`, `to_numpy`, `compute`) import pandas, which takes longer than to simulate a
thousand requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Bools = NDArray[np.bool_]


def read_table(path: Path) -> pa.Table:
    """Return a Parquet file, columns of words as dictionaries; raises what pyarrow raises."""
    with pq.ParquetFile(path) as file:
        words = [field.name for field in file.schema_arrow if field.type == pa.string()]
        if not words:
            return file.read(use_threads=False)
    with pq.ParquetFile(path, read_dictionary=words) as file:
        return file.read(use_threads=False)


def column(values: NDArray[Any], absent: Bools | None = None) -> pa.Array:
    """Return numbers or truth values as a column, null where `absent`."""
    kind = pa.from_numpy_dtype(values.dtype)
    bits = values.dtype == bool
    data = np.packbits(values, bitorder="little") if bits else np.ascontiguousarray(values)
    valid = None
    if absent is not None and absent.any():
        valid = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(data)])


def texts(words: Sequence[str]) -> pa.Array:
    """Return words as a column."""
    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def indexed(index: NDArray[Any], words: Sequence[str]) -> pa.Array:
    """Return `words[i]` for each i as a column of dictionary type, null where i is negative."""
    return pa.DictionaryArray.from_arrays(column(index.astype(np.int32), index < 0), texts(words))


def numbers(values: pa.ChunkedArray | pa.Array, absent: float) -> NDArray[Any]:
    """Return a column of numbers or truth values, `absent` where it is null."""
    parts = []
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        part = _data(chunk)
        if chunk.null_count:
            part = np.where(_present(chunk), part, part.dtype.type(absent))
        parts.append(part)
    if not parts:
        return np.empty(0, values.type.to_pandas_dtype())
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def floats(values: pa.ChunkedArray | pa.Array) -> NDArray[np.float64]:
    """Return a column of numbers as float64, NaN where it is null."""
    parts = [np.empty(0)]
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        part = _data(chunk).astype(np.float64)
        parts.append(np.where(_present(chunk), part, np.nan) if chunk.null_count else part)
    return np.concatenate(parts)


def rows(table: pa.Table, chosen: Bools) -> pa.Table:
    """Return the chosen rows of a table."""
    picked = {}
    for name, values in zip(table.column_names, table.columns, strict=True):
        chunk = values.combine_chunks()
        if isinstance(chunk, pa.DictionaryArray):
            index = numbers(chunk.indices, -1)[chosen]
            picked[name] = pa.DictionaryArray.from_arrays(column(index, index < 0), chunk.dictionary)
        elif pa.types.is_primitive(chunk.type):
            picked[name] = column(_data(chunk)[chosen], ~_present(chunk)[chosen])
        else:
            picked[name] = values.filter(pa.array(chosen))
    return pa.table(picked)


def equals(values: pa.ChunkedArray | pa.Array, word: str) -> Bools:
    """Return where a column of words, as a dictionary or plain, is `word` (null: nowhere)."""
    parts = [np.empty(0, bool)]
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        if not isinstance(chunk, pa.DictionaryArray):
            parts.append(np.array([one == word for one in chunk.to_pylist()], bool))
            continue
        known = [one == word for one in chunk.dictionary.to_pylist()]
        parts.append(np.array([*known, False])[numbers(chunk.indices, -1)])
    return np.concatenate(parts)


def objects(values: pa.ChunkedArray) -> NDArray[np.object_]:
    """Return a column of words of dictionary type as objects, None where it is null."""
    parts = [np.empty(0, object)]
    for chunk in values.chunks:
        known = np.array([*chunk.dictionary.to_pylist(), None], object)
        parts.append(known[numbers(chunk.indices, -1)])
    return np.concatenate(parts)


def _data(chunk: pa.Array) -> NDArray[Any]:
    """Return the values of a chunk, whatever they are where it is null."""
    if chunk.type == pa.null():
        return np.full(len(chunk), np.nan)
    buffer = chunk.buffers()[1]
    if buffer is None:
        return np.empty(0, chunk.type.to_pandas_dtype())
    if chunk.type == pa.bool_():
        return _bits(buffer, chunk)
    dtype = np.dtype(chunk.type.to_pandas_dtype())
    return np.frombuffer(buffer, dtype, len(chunk), chunk.offset * dtype.itemsize)


def _present(chunk: pa.Array) -> Bools:
    """Return where a chunk has a value."""
    buffer = chunk.buffers()[0]
    return np.full(len(chunk), chunk.type != pa.null()) if buffer is None else _bits(buffer, chunk)


def _bits(buffer: pa.Buffer, chunk: pa.Array) -> Bools:
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
    return bits[chunk.offset : chunk.offset + len(chunk)].astype(bool)
