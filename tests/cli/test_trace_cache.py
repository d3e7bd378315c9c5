"""`simserve trace show --cache`: table, JSON, page, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from simserve.paths import data_dir
from simserve.workload import load_trace, stats

Call = Callable[..., Result]
LONG = str(data_dir("traces") / "long_context.jsonl.gz")
CHAT = str(data_dir("traces") / "chat.csv.gz")


def test_table_ends_at_the_ceiling(simserve: Call) -> None:
    done = simserve("trace", "show", LONG, "--cache")
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    ceiling = stats(load_trace(LONG)).prefix
    assert ceiling is not None
    unlimited = next(line for line in done.stdout.splitlines() if "no limit" in line)
    assert f"{ceiling.token_hit_rate * 100:.2f}" in unlimited
    assert f"{ceiling.block_hit_rate * 100:.2f}" in unlimited


def test_json_counts_capacity_in_cache_blocks(simserve: Call) -> None:
    coarse = json.loads(simserve("trace", "show", LONG, "--cache", "--json").stdout)["cache"]
    fine = json.loads(simserve("trace", "show", LONG, "--cache", "--cache-block", "16", "--json").stdout)[
        "cache"
    ]
    assert (coarse["cache_block_tokens"], fine["cache_block_tokens"]) == (512, 16)
    assert fine["points"][-1] == coarse["points"][-1]
    assert all(point["capacity_tokens"] == 16 * point["capacity_blocks"] for point in fine["points"][:-1])
    # A partial block takes less room in small blocks.
    assert fine["enough_blocks"] < 32 * coarse["enough_blocks"]
    assert "cache" not in json.loads(simserve("trace", "show", LONG, "--json").stdout)


def test_page_draws_the_curve(simserve: Call, tmp_path: Path, browser) -> None:
    path = tmp_path / "long.html"
    assert simserve("trace", "show", LONG, "--cache", "--html", str(path)).exit_code == 0
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("#cache .plot-container")
    lines = page.evaluate("document.getElementById('cache').data.map(line => line.y)")
    kind = page.evaluate("document.getElementById('cache').layout.xaxis.type")
    page.close()
    assert errors == []
    assert kind == "log"
    assert len(lines) == 2
    ceiling = stats(load_trace(LONG)).prefix
    assert ceiling is not None
    assert lines[0] == sorted(lines[0])
    assert lines[0][-1] == pytest.approx(100 * ceiling.token_hit_rate, abs=1e-4)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((CHAT, "--cache"), "chat.csv.gz: no block ids"),
        ((LONG, "--cache", "--cache-block", "17"), "17 tokens do not divide"),
        ((LONG, "--cache-block", "16"), "--cache-block is for --cache"),
    ],
)
def test_refusals_are_one_line(simserve: Call, args: tuple[str, ...], words: str) -> None:
    done = simserve("trace", "show", *args)
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert words in line
