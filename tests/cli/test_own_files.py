"""`run` says which columns of an own file it took for what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_columns_are_printed(small: Path, simserve: Call, options: tuple[str, ...]) -> None:
    (small.parent / "own.csv").write_text("ts_ms,in_tokens,completion_tokens,user\n0,30,4,a\n900,40,5,b\n")
    done = simserve("run", small, "--set", "workload={trace: own.csv}", *options)
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "arrival: ts_ms (ms), prompt_tokens: in_tokens, output_tokens: completion_tokens" in text


def test_nothing_is_printed_of_a_format_of_its_own(small: Path, simserve: Call) -> None:
    assert "column names" not in simserve("run", small, "--check").stdout
