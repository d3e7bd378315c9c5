"""A table in a terminal that is wide enough, narrow and too narrow: nothing of it is ever cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from simserve.cli.terminal import FittedTable

ROWS = [("four_replicas_of_h100", "12,345.6", "98.3 %"), ("one", "7.0", "100.0 %")]


def drawn(width: int) -> list[str]:
    table = FittedTable("deployment")
    table.add_column("TTFT p99", justify="right")
    table.add_column("within", justify="right")
    for row in ROWS:
        table.add_row(*row)
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [200, 46, 34, 30, 20])
def test_every_character_is_there_at_every_width(width: int) -> None:
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    assert Counter(cell for row in ROWS for cell in "".join("".join(row).split())) <= Counter("".join(lines))
    for figure in ("12,345.6", "100.0 %"):
        assert figure in " ".join(" ".join(lines).split())


def test_a_wide_terminal_keeps_rows_on_a_line() -> None:
    row = next(line for line in drawn(200) if "four" in line)
    assert row.split() == ["│", ROWS[0][0], "│", "12,345.6", "│", "98.3", "%", "│"]


def test_a_narrow_one_folds_names_and_never_figures() -> None:
    lines = drawn(30)
    assert any("12,345.6" in line and "98.3 %" in line for line in lines)
    assert not any(ROWS[0][0] in line for line in lines)


def test_in_a_very_narrow_one_a_row_becomes_a_sentence() -> None:
    text = " ".join(" ".join(drawn(22)).split())
    assert text == "four_replicas_of_h100: TTFT p99 12,345.6, within 98.3 % one: TTFT p99 7.0, within 100.0 %"


def test_the_mark_of_an_overload_is_explained(small: Path, simserve: Callable[..., Any]) -> None:
    """One request at a time is served in 0.13 s, and they come every 0.025 s."""
    change = "compare:\n  slow: {engine: {max_num_seqs: 1}}\n"
    small.write_text(small.read_text(encoding="utf-8") + change, encoding="utf-8")
    load = ["workload.synthetic.requests=600", "workload.synthetic.arrivals.rate_per_s=40"]
    done = simserve("run", small, *(part for text in load for part in ("--set", text)))
    assert "100% !" in done.stdout
    assert "! overloaded: the queue never stopped growing" in done.stdout
