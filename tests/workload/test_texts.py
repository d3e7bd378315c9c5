"""ShareGPT and OpenAI messages become requests: tokens counted, assumed, and shared by content."""

from __future__ import annotations

import builtins
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.core.result import Status
from simserve.deploy.build import build
from simserve.deploy.manifest import resolved_yaml
from simserve.errors import TraceError
from simserve.scenario import load_scenario
from simserve.workload import load_trace

RATIO: dict[str, Any] = {"tokens_per_word": 1.0, "rate": 2}


def said(*texts: str) -> dict[str, Any]:
    """Return a ShareGPT conversation of a person and a model, in turns."""
    who = ("human", "gpt")
    return {"conversations": [{"from": who[i % 2], "value": text} for i, text in enumerate(texts)]}


def chat(*texts: str) -> dict[str, Any]:
    """Return messages: system, then user and assistant in turns."""
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": texts[0]}]
    return {"messages": [*messages, *({"role": roles[i % 2], "content": t} for i, t in enumerate(texts[1:]))]}


def words(n: int, word: str = "w") -> str:
    return " ".join(f"{word}{i}" for i in range(n))


TALK = [said(words(10), words(20), words(30), words(40)), said(words(5), words(6)), said("nobody answers")]


def test_first_answers(written: Callable) -> None:
    trace = load_trace(written("s.json", json.dumps(TALK)), **RATIO)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10, 5], [20, 6])
    assert trace.origin.changes == ("1 conversations have no such answer: left out",)


def test_last_answers(written: Callable) -> None:
    trace = load_trace(written("s.json", json.dumps(TALK)), turns="last", **RATIO)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([60, 5], [40, 6])


def test_all_answers_are_turns_of_a_session(written: Callable) -> None:
    path = written("s.json", json.dumps(TALK))
    trace = load_trace(path, turns="all", think_s=3, tokens_per_word=1, arrivals=steady(0.01))
    assert trace.prompt_tokens.tolist() == [10, 60, 5]
    assert trace.output_tokens.tolist() == [20, 40, 6]
    assert trace.session is not None
    assert trace.think_ns is not None
    assert trace.session.tolist() == [0, 0, 1]
    assert trace.think_ns.tolist() == [0, 3_000_000_000, 0]


def steady(rate: float) -> dict[str, Any]:
    return {"kind": "constant", "rate_per_s": rate}


def test_a_ratio_is_stated(written: Callable) -> None:
    trace = load_trace(written("s.json", json.dumps(TALK)), tokens_per_word=1.3, rate=2)
    assert trace.prompt_tokens.tolist() == [13, 6]  # 10 x 1.3; 5 x 1.3 = 6.5, rounded half to even
    assert any("1.3 tokens a word" in line for line in trace.origin.assumptions)


def test_prompts_share_what_they_have_in_common(written: Callable) -> None:
    common = words(40)
    rows = [
        chat(common, "a b", "c"),
        chat(common, "d e", "f"),
        chat(words(40, "x"), "d e", "f"),
    ]
    path = written("m.jsonl", "\n".join(map(json.dumps, rows)))
    trace = load_trace(path, arrivals=steady(1), tokens_per_word=1.0)
    assert trace.block_tokens == 16
    assert trace.block_ids is not None
    assert trace.block_offsets is not None
    first, second, third = np.split(trace.block_ids, trace.block_offsets[1:-1])
    assert len(first) == 42 // 16
    assert first.tolist() == second.tolist()
    assert set(first.tolist()).isdisjoint(third.tolist())


def test_the_same_words_of_another_role_are_other_content(written: Callable) -> None:
    text = words(20)
    other = {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "x"}]}
    path = written("m.jsonl", f"{json.dumps(chat(text, 'a', 'x'))}\n{json.dumps(other)}\n")
    trace = load_trace(path, arrivals=steady(1), tokens_per_word=1.0)
    assert trace.block_ids is not None
    assert len(set(trace.block_ids.tolist())) == len(trace.block_ids)


def test_requests_without_answers_need_a_length(written: Callable, refused: Callable) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
    path = written("in.jsonl", "\n".join(json.dumps({"custom_id": str(i), "body": body}) for i in range(2)))
    message = refused(path, **RATIO)
    assert "line 1" in message
    assert "output_tokens" in message
    trace = load_trace(path, output_tokens=50, **RATIO)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([3, 3], [50, 50])
    assert trace.origin.changes == ("2 requests have no answer: 50 output tokens assumed",)


def test_parts_and_images(written: Callable) -> None:
    parts = [{"type": "text", "text": "what is this"}, {"type": "image_url", "image_url": {"url": "x"}}]
    row = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "A cat"}]}
    trace = load_trace(written("m.jsonl", json.dumps(row)), **RATIO)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([3], [2])
    assert any(line.startswith("1 images") for line in trace.origin.assumptions)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Write a tokenizer that makes a token of every letter, and return its file."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz ?")}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.enable_truncation(8)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize("folder", [False, True])
def test_a_tokenizer_counts(folder: bool, tokenizer: Path, written: Callable) -> None:
    path = written("s.json", json.dumps([said("how are you today", "fine")]))
    name = str(tokenizer.parent if folder else tokenizer)
    trace = load_trace(path, tokenizer=name, rate=1)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([17], [4])
    assert len(trace.block_ids if trace.block_ids is not None else []) == 1
    templated = load_trace(path, tokenizer=name, rate=1, tokens_per_message=5)
    assert (templated.prompt_tokens.tolist(), templated.output_tokens.tolist()) == ([22], [4])


def test_a_missing_tokenizer(written: Callable, refused: Callable, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    message = refused(
        written("s.json", json.dumps(TALK)), tokenizer=str(tmp_path / "none" / "tokenizer.json"), rate=1
    )
    assert "cannot be loaded" in message
    assert "tokenizer.json" in message


def test_without_the_library(written: Callable, refused: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    plain_import = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return plain_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    message = refused(written("s.json", json.dumps(TALK)), tokenizer="some/model", rate=1)
    assert "pip install -e '.[text]'" in message
    assert "tokens_per_word" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens_per_word": 1.3}, ["no arrivals", "rate"]),
        ({"rate": 1}, ["no lengths", "tokenizer"]),
        ({"tokens_per_word": 1.3, "tokenizer": "x", "rate": 1}, ["leave one"]),
        ({"tokens_per_word": 1.3, "rate": 1, "arrivals": steady(1)}, ["leave one"]),
        ({"tokens_per_word": 1.3, "rate": 1, "turns": "all"}, ["think_s"]),
        ({"tokens_per_word": 1.3, "rate": math.inf}, ["rate"]),
        ({"tokens_per_word": -1, "rate": 1}, ["tokens_per_word"]),
    ],
)
def test_options_that_do_not_do(
    options: dict[str, Any], words: list[str], written: Callable, refused: Callable
) -> None:
    message = refused(written("s.json", json.dumps(TALK)), **options)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"conversations": "hi", "value": 1}, ["conversations", "a list"]),
        ({"conversations": [{"from": "human"}], "value": 1}, ["message 1", "value: TEXT"]),
        ({"conversations": [{"from": "humn", "value": "x"}]}, ["'humn'", "did you mean 'human'"]),
        ({"messages": [{"role": "usr", "content": "x"}]}, ["'usr'", "did you mean 'user'"]),
        ({"messages": [{"role": "user", "content": 5}]}, ["content of message 1", "5"]),
        ({"messages": [{"role": "user", "content": "x"}, 7]}, ["message 2", "7"]),
    ],
)
def test_rows_that_are_no_conversation(
    row: dict[str, Any], words: list[str], written: Callable, refused: Callable
) -> None:
    message = refused(written("t.jsonl", json.dumps(row)), **RATIO)
    assert "line 1" in message
    assert all(word in message for word in words), message


SCENARIO = """
name: texts
model: llama-3.1-8b
engine: vllm-0.33
seed: 5
workload: {workload}
pools: [{{gpu: h100_sxm}}]
"""


def deployed(tmp_path: Path, workload: str) -> Any:
    (tmp_path / "chats.json").write_text(json.dumps(TALK))
    (tmp_path / "s.yaml").write_text(SCENARIO.format(workload=workload))
    return build(load_scenario(tmp_path / "s.yaml"))


def test_a_scenario_with_a_rate(tmp_path: Path) -> None:
    made = deployed(tmp_path, "{trace: chats.json, tokens_per_word: 1.0, rate: 2}")
    assert made.trace.prompt_tokens.tolist() == [10, 5]
    assert any("seed 5" in line for line in made.trace.origin.assumptions)
    assert (made.simulate().status == Status.COMPLETED).all()


def test_a_scenario_with_a_closed_loop(tmp_path: Path) -> None:
    made = deployed(tmp_path, "{trace: chats.json, tokens_per_word: 1.0, closed_loop: {concurrency: 1}}")
    assert made.trace.arrival_ns.tolist() == [0, 0]
    assert (made.simulate().status == Status.COMPLETED).all()


def test_a_tokenizer_beside_the_scenario(tmp_path: Path, tokenizer: Path) -> None:
    assert tokenizer.parent == tmp_path
    made = deployed(tmp_path, "{trace: chats.json, tokenizer: tokenizer.json, rate: 2}")
    assert made.trace.prompt_tokens.tolist() == [len(words(10)), len(words(5))]
    assert "tokenizer.json" in resolved_yaml(made)


@pytest.mark.parametrize(
    "workload",
    [
        "{trace: chats.json, tokens_per_word: 1.0}",
        "{trace: chats.json, tokens_per_word: 1.0, rate: 2, closed_loop: {concurrency: 1}}",
        "{trace: traces/chat.csv.gz, rate: 2}",
        "{trace: traces/chat.csv.gz, tokens_per_word: 1.3}",
    ],
)
def test_scenarios_that_are_refused(workload: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"s\.yaml:6") as caught:
        deployed(tmp_path, workload)
    assert (
        "arrivals" in str(caught.value) or "lengths" in str(caught.value) or "leave one" in str(caught.value)
    )


def test_lengths_only_with_a_rate(written: Callable) -> None:
    path = written("l.csv", "input_tokens,output_tokens\n10,2\n20,3\n")
    trace = load_trace(path, rate=2)
    assert trace.prompt_tokens.tolist() == [10, 20]
    assert trace.origin.columns["prompt_tokens"] == "input_tokens"
    with pytest.raises(TraceError, match="rate: 5"):
        load_trace(path)
