"""A scenario with a mistake of every sort is told all of them in one round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simserve.cli import app

GOOD = """\
name: x
model: llama-3.1-8b
engine: {preset: vllm-0.33}
workload: {trace: traces/chat.csv.gz, limit: 5}
pools: [{gpu: h100_sxm}]
"""
SCHEMA = """\
name: x
model: llama-3.1-9b
engine: {preset: vlm-0.33, max_num_batched_token: 5}
workload: {trace: nothere.csv, lmit: 5}
pools: [{gpu: h1000, tp: two}, {name: b, gpu: a100_sxmm}]
router: rond_robin
weights_dtype: fp8
slo: {ttft: 5}
capacity: {of: rate, form: 1, to: 3}
"""
NAMES = """\
name: x
model: llama-3.1-9b
engine: {preset: vlm-0.33}
workload: {trace: broken.csv}
pools: [{gpu: h1000}]
router: rond_robin
"""
BUILD = """\
name: x
model: llama-3.1-8b
engine: {preset: vllm-0.33, watermak: 0.1}
workload: {trace: broken.csv}
pools: [{gpu: h100_sxm, tp: 3}, {name: b, gpu: h100_sxm, kv_dtype: fp9}]
router: rond_robin
"""

Refused = Callable[..., list[str]]


@pytest.fixture
def refused(tmp_path: Path) -> Refused:
    """Run a scenario text, which must be refused, and return the lines of the message."""

    def run(text: str, *options: str) -> list[str]:
        (tmp_path / "broken.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,many,1\n")
        (tmp_path / "s.yaml").write_text(text)
        done = CliRunner().invoke(
            app, ["run", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "o"), *options]
        )
        assert done.exit_code == 2, done.output
        return done.stderr.splitlines()

    return run


def named(lines: list[str], *sorts: str) -> bool:
    """Return whether each sort of mistake has exactly one line."""
    return [sum(sort in line for line in lines) for sort in sorts] == [1] * len(sorts)


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_keys_names_and_files_at_once(refused: Refused, options: tuple[str, ...]) -> None:
    lines = refused(SCHEMA, *options)
    assert named(
        lines,
        "model 'llama-3.1-9b'",
        "engine 'vlm-0.33'",
        "'max_num_batched_token'",
        "'nothere.csv'",
        "'lmit'",
        "'h1000'",
        "'two'",
        "'a100_sxmm'",
        "'rond_robin'",
        "'weights_dtype'",
        "'ttft'",
        "'form'",
        "capacity.from: is required",
    )
    assert len(lines) == 13


def test_names_and_files_at_once(refused: Refused) -> None:
    lines = refused(NAMES)
    assert named(lines, "llama-3.1-9b", "'vlm-0.33'", "'many'", "'h1000'", "'rond_robin'")
    assert len(lines) == 5


def test_what_is_only_seen_when_it_is_built(refused: Refused) -> None:
    lines = refused(BUILD)
    assert named(lines, "'many'", "'rond_robin'", "'watermak'", "tp = 3", "fp9")
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("limit: 5", "limit: none"), ["limit", "'none'"]),
        (("h100_sxm", "h100_sxmm"), ["pools[0].gpu", "of this chip there is", "h100_sxm"]),
        (("chat.csv", "chta.csv"), ["workload.trace", "did you mean"]),
        (("name: x", "name: x\nseed: -1"), ["seed", "-1"]),
    ],
)
def test_one_mistake_is_one_line(refused: Refused, change: tuple[str, str], words: list[str]) -> None:
    lines = refused(GOOD.replace(*change))
    assert len(lines) == 1
    assert all(word in lines[0] for word in words), lines


def test_the_names_of_a_file(refused: Refused) -> None:
    """`from` and `to` are what a file writes, not what the program calls them."""
    (line,) = refused(GOOD + "capacity: {of: rate, from: 1, to: 2, form: 1}\n")
    allowed = line.partition("allowed: ")[2].split(", ")
    assert {"from", "to"} <= set(allowed)
    assert {"low", "high"}.isdisjoint(allowed)


def test_a_key_that_belongs_elsewhere(refused: Refused) -> None:
    (line,) = refused(GOOD + "kv_dtype: fp8\n")
    assert "it belongs in pools[]" in line


VARIANTS = """\
compare:
  a: {engine: {max_num_seq: 5}}
  b: {pools: [{gpu: h10_sxm}]}
  c: {model: llama-3.1-80b}
  d: {routr: x}
  e: {engine: {max_num_batched_tokens: -5}}
  right: {router: round_robin}
"""


def test_the_mistakes_of_all_variants_at_once(refused: Refused) -> None:
    lines = refused(GOOD + VARIANTS)
    places = [
        "a.engine.max_num_seq",
        "b.pools[0].gpu",
        "c.model",
        "d.routr",
        "e.engine.max_num_batched_tokens",
    ]
    assert named(lines, *(f"compare.{place}: " for place in places))
    assert len(lines) == 5


def test_what_is_only_seen_when_variants_are_built(refused: Refused) -> None:
    """Three attention heads do not exist, and 70 billion parameters do not fit on one GPU."""
    wide = "compare:\n  a: {pools: [{gpu: h100_sxm, tp: 3}]}\n  b: {model: llama-3.1-70b}\n  c: {router: x}\n"
    lines = refused(GOOD + wide)
    assert named(
        lines, "compare.a.pools[0].tp = 3", "(in variant b): llama-3.1-70b does not fit", "router 'x'"
    )
    assert len(lines) == 3
