"""Four small logs of rules worked out by hand (tests/conformance, h1 to h4): the figures that tell.

The steps around them were written by the replay; what is asserted here follows from the rules of
docs/engines.md without it. The real schedulers' logs agree with the rules, but do not ship whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simserve.validation import golden_sglang, golden_vllm
from simserve.validation.golden import GoldenLog

LOGS = Path(__file__).resolve().parents[1] / "conformance"
VERSIONS = ("0.33.0", "0.19.0", "0.15.1")


def log(folder: str, name: str) -> GoldenLog:
    return GoldenLog.read(LOGS / folder / f"{name}.jsonl")


def hits(of: GoldenLog) -> dict[int, int]:
    """Return the cached tokens that each request found when it was first admitted."""
    found: dict[int, int] = {}
    for step in of.steps:
        found |= {i: cached for i, _, cached in step.get("s", ()) if i in step.get("new", ())}
    return found


def steps(of: GoldenLog, *fields: str) -> list[tuple[Any, ...]]:
    return [tuple(step[field] for field in fields) for step in of.steps]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["h1_quoted_answer", "h2_quoted_answer_async"])
def test_vllm_replays(version: str, name: str) -> None:
    assert golden_vllm.replay_log(log(f"vllm-{version}", name)).equal


@pytest.mark.parametrize("name", ["h3_node_at_end_of_prompt", "h4_refresh_of_waiting"])
def test_sglang_replays(name: str) -> None:
    assert golden_sglang.replay(LOGS / "sglang-0.5.23" / f"{name}.jsonl").equal


@pytest.mark.parametrize("version", VERSIONS)
def test_a_block_that_decoding_fills(version: str) -> None:
    """Prompts of 14 tokens, so output tokens 0 and 1 fill a block; step 2 computes the second of them.

    Without asynchronous scheduling who is admitted in step 2 finds the block, with it who is in step 3: token
    1 is known when the result of step 1 is in, which is after step 2 was planned.
    """
    for name, first in (("h1_quoted_answer", 2), ("h2_quoted_answer_async", 3)):
        one = log(f"vllm-{version}", name)
        assert [(row["id"], row["at"]) for row in one.requests[2:]] == [(2, first - 1), (3, first)]
        assert hits(one) == {0: 0, 1: 0, 2: 0, 3: 16}


def test_the_end_of_the_prompt_is_the_end_of_a_node() -> None:
    """40 tokens of KV. Request 1 is sent back at step 12 with 10 prompt and 11 output tokens.

    They are computed together at step 13, and stand in the tree as 10 and 11. At step 14 request 2 needs 25
    tokens: 9 are free, the 10 of prompt 0 go first, then the 11 of output 1. So 5 are left free, and prompt 1
    stays for request 3. As one node of 21 it would have gone whole: 15 free, and nothing to find.
    """
    one = log("sglang-0.5.23", "h3_node_at_end_of_prompt")
    assert one.steps[12]["retract"] == [1]
    assert one.steps[13]["s"] == [[1, 21, 0]]
    assert steps(one, "free", "evictable")[13:15] == [(9, 10), (5, 10)]
    assert hits(one)[3] == 10


def test_waiting_prompts_are_refreshed() -> None:
    """One request at a time, 70 tokens of KV: cached prompts 0 (older) and 1, 10 tokens each.

    Request 3, which begins like prompt 0, waits from step 3 on, and the queue is ordered in each step. The
    33rd ordering, in step 32, counts prompt 0 as used. In step 43 memory ends: prompt 1 goes, and request 3
    finds prompt 0 when its turn comes in step 47 (request 2 has 45 output tokens, one in step 2).
    """
    one = log("sglang-0.5.23", "h4_refresh_of_waiting")
    assert one.steps[42]["free"] == 70 - 3 * 10 - 40 == 0
    assert steps(one, "free", "evictable")[43] == (9, 10)
    assert one.steps[47]["s"] == [[3, 5, 10]]


def test_without_the_refresh_the_older_prompt_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: refreshed only every 64th ordering."""
    monkeypatch.setattr("simserve.engines.sglang.order.REFRESH_INTERVAL", 64)
    compared = golden_sglang.replay(LOGS / "sglang-0.5.23" / "h4_refresh_of_waiting.jsonl")
    assert not compared.equal
    assert compared.steps_equal == 47
