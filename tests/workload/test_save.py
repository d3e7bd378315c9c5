"""Writing traces: reading back gives the same, what a format cannot hold is refused by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload import SyntheticSpec, load_trace, synthesize, write_trace

CONTENT: dict[str, Any] = {
    "requests": 300,
    "arrivals": {"kind": "gamma", "rate_per_s": 5, "cv": 2},
    "prompt_tokens": {"kind": "lognormal", "p50": 200, "p90": 900},
    "output_tokens": {"kind": "exponential", "mean": 40},
    "shared_prefixes": {"groups": [{"tokens": 128}, {"tokens": 40}]},
}
CHAT = {
    "turns": {"kind": "uniform", "min": 1, "max": 5},
    "think_s": {"kind": "exponential", "mean": 9},
}
FORMATS = [
    ("azure", "x.csv"),
    ("azure", "x.csv.gz"),
    ("vidur", "x.csv.gz"),
    ("mooncake", "x.jsonl.gz"),
    ("plain", "x.csv"),
    ("plain", "x.parquet"),
]


def draw(**changes: Any) -> Trace:
    return synthesize(SyntheticSpec.model_validate({**CONTENT, **changes}), 3)


@pytest.mark.parametrize(("format", "name"), FORMATS)
def test_every_format_returns_lengths_and_stamps(
    format: str, name: str, tmp_path: Path, assert_same: Callable
) -> None:
    trace = draw(shared_prefixes=None)
    assert write_trace(trace, tmp_path / name, format) == []
    back = load_trace(tmp_path / name)
    assert back.origin.format == format
    assert_same(back, trace)


@pytest.mark.parametrize(("format", "name"), FORMATS[2:])
def test_block_ids_return(format: str, name: str, tmp_path: Path, assert_same: Callable) -> None:
    trace = draw()
    write_trace(trace, tmp_path / name, format)
    assert_same(load_trace(tmp_path / name), trace)


@pytest.mark.parametrize(("format", "name"), FORMATS[3:])
def test_sessions_return(format: str, name: str, tmp_path: Path, assert_same: Callable) -> None:
    trace = draw(sessions=CHAT, shared_prefixes=None)
    write_trace(trace, tmp_path / name, format)
    options = {"block_tokens": 16} if format == "mooncake" else {}
    assert_same(load_trace(tmp_path / name, **options), trace)


@pytest.mark.parametrize(("format", "name"), FORMATS[4:])
def test_plain_holds_everything(format: str, name: str, tmp_path: Path, assert_same: Callable) -> None:
    trace = draw(sessions=CHAT)
    n = len(trace)
    trace = replace(
        trace,
        max_tokens=trace.output_tokens + 7,
        priority=np.arange(n) % 3 - 1,
        labels={"tenant": np.array([f'"t", {i % 4}' for i in range(n)], dtype=object)},
    )
    write_trace(trace, tmp_path / name, format)
    assert_same(load_trace(tmp_path / name), trace)


def test_losses_are_refused_by_name_and_reported_if_accepted(tmp_path: Path) -> None:
    trace = replace(draw(sessions=CHAT), max_tokens=np.full(300, 9), arrival_ns=np.arange(300) * 10)
    with pytest.raises(TraceError) as caught:
        write_trace(trace, tmp_path / "a.csv", "azure")
    for word in ("max_tokens", "sessions", "block ids", "270 stamps finer than 100 ns"):
        assert word in str(caught.value)
    losses = write_trace(trace, tmp_path / "a.csv", "azure", lossy=True)
    assert len(losses) == 4
    assert load_trace(tmp_path / "a.csv").prompt_tokens.tolist() == trace.prompt_tokens.tolist()


def test_mooncake_refuses_contents_that_its_dialect_cannot_say(tmp_path: Path) -> None:
    trace = draw(sessions=CHAT | {"history": "none"})
    with pytest.raises(TraceError, match="history"):
        write_trace(trace, tmp_path / "m.jsonl", "mooncake")


def test_existing_files_and_wrong_endings(tmp_path: Path) -> None:
    trace = draw(shared_prefixes=None)
    path = tmp_path / "x.csv"
    write_trace(trace, path, "plain")
    with pytest.raises(TraceError, match="exists already"):
        write_trace(trace, path, "plain")
    write_trace(trace, path, "azure", force=True)
    with pytest.raises(TraceError, match=r"ends in .csv"):
        write_trace(trace, tmp_path / "x.jsonl", "azure")
    with pytest.raises(TraceError, match="no folder"):
        write_trace(trace, tmp_path / "none" / "x.csv", "plain")
    with pytest.raises(TraceError, match=r"write .parquet"):
        write_trace(trace, tmp_path / "x.parquet.gz", "plain")


@pytest.mark.parametrize(("format", "name"), FORMATS)
def test_same_trace_same_bytes(format: str, name: str, tmp_path: Path) -> None:
    trace = draw(shared_prefixes=None)
    hashes = set()
    for _ in range(2):
        write_trace(trace, tmp_path / name, format, force=True)
        hashes.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(hashes) == 1


PUBLIC = {
    "azure_llm_2023_conv.csv.gz": FORMATS,
    "mooncake_fast25_synthetic.jsonl.gz": FORMATS[2:],
    "aiperf_synth_agentic_code_63s.jsonl.gz": FORMATS[3:],
    "llmservingsim_sharegpt300_llama31_blk16.jsonl.gz": FORMATS[2:],
    "servegen_sample_m_large_1h.csv.gz": [FORMATS[0], FORMATS[2], *FORMATS[4:]],
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces_survive(name: str, public: Callable, tmp_path: Path, assert_same: Callable) -> None:
    trace = public(name)
    for format, target in PUBLIC[name]:
        write_trace(trace, tmp_path / target, format, force=True)
        assert_same(load_trace(tmp_path / target), trace)
