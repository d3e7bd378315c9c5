"""docs/trace-formats.md lists every format, and its examples are of the format that they name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from simserve.workload import load_trace
from simserve.workload.formats.base import READERS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "trace-formats.md").read_text()
EXAMPLES = re.findall(r"^`([\w-]+)`[^\n]*:\n\n```\n(.*?)```$", PAGE, re.M | re.S)
TEXTS = ("sharegpt", "openai_messages")
QUARTER = {"arrivals": {"kind": "constant", "rate_per_s": 4}}
WITHOUT_ARRIVALS = {"openai_batch": QUARTER} | {name: QUARTER | {"tokens_per_word": 1.0} for name in TEXTS}


def test_every_format_is_listed() -> None:
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.M)) == sorted(READERS)


@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_examples_are_read(name: str, text: str, written: Callable) -> None:
    trace = load_trace(written("example.csv", text), **WITHOUT_ARRIVALS.get(name, {}))
    assert trace.origin.format == name
    assert trace.arrival_ns.tolist() == [0, 250_000_000]
    assert trace.prompt_tokens.tolist() == ([9, 3] if name in TEXTS else [812, 95])
    assert trace.output_tokens.tolist() == ([2, 1] if name in TEXTS else [64, 7])


def test_every_format_has_an_example() -> None:
    assert sorted(name for name, _ in EXAMPLES) == sorted(READERS)
