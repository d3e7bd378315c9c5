"""Every reader reads gzip and zstd, and says what is wrong with a damaged file."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pyarrow as pa
import pytest

from simserve.workload import load_trace

CSV = b"arrival_s,prompt_tokens,output_tokens\n0,812,64\n0.25,95,7\n"
JSONL = b'{"timestamp": 0, "input_length": 812, "output_length": 64}\n' * 2


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
@pytest.mark.parametrize(("data", "format"), [(CSV, "plain"), (JSONL, "mooncake")])
def test_compressed(pack: Callable[[bytes], bytes], data: bytes, format: str, written: Callable) -> None:
    trace = load_trace(written("trace", pack(b"\xef\xbb\xbf" + data)))
    assert trace.origin.format == format
    assert len(trace) == 2


def test_frames_one_after_another(written: Callable) -> None:
    """`cat a.zst b.zst` is a zst file, as with gzip."""
    for pack in (gzip.compress, zstd):
        trace = load_trace(written("trace", pack(CSV) + pack(b"1.5,9,9\n")))
        assert trace.prompt_tokens.tolist() == [812, 95, 9]


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_damaged(pack: Callable[[bytes], bytes], written: Callable, refused: Callable) -> None:
    whole = pack(CSV)
    for damaged in (whole[:6], whole[:-3], whole + b"junk"):
        message = refused(written("trace", damaged))
        assert "damaged" in message
        assert "allowed" in message


def test_compressed_nothing(written: Callable, refused: Callable) -> None:
    for pack in (gzip.compress, zstd):
        assert "empty" in refused(written("trace", pack(b"")))
