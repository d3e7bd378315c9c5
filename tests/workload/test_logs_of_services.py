"""Logs that services write: what is a request, and what is left out and counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from simserve.workload import load_trace


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def answer(name: str, usage: dict[str, int], status: int = 200, error: object = None) -> dict[str, Any]:
    body = {"object": "chat.completion", "model": "m", "choices": [{"index": 0}], "usage": usage}
    response = {"status_code": status, "request_id": name, "body": body}
    return {"id": f"b-{name}", "custom_id": name, "response": response, "error": error}


BATCH = [
    answer("r1", {"prompt_tokens": 22, "completion_tokens": 2, "total_tokens": 24}),
    answer("r2", {}, status=429),
    answer("r3", {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}),
    {"id": "b-r4", "custom_id": "r4", "response": None, "error": {"code": "batch_expired"}},
]


def test_batch_output(written: Callable) -> None:
    trace = load_trace(written("batch_output.jsonl", lines(*BATCH)))
    assert trace.origin.format == "openai_batch"
    assert trace.prompt_tokens.tolist() == [22, 7]
    assert trace.output_tokens.tolist() == [2, 9]
    assert trace.arrival_ns.tolist() == [0, 0]
    assert any("time 0" in note for note in trace.origin.assumptions)
    assert any(note.startswith("2 answers have an error") for note in trace.origin.changes)


def test_batch_output_with_arrivals(written: Callable) -> None:
    path = written("batch_output.jsonl", lines(*BATCH))
    trace = load_trace(path, arrivals={"kind": "constant", "rate_per_s": 4})
    assert trace.arrival_ns.tolist() == [0, 250_000_000]


def test_batch_output_of_the_responses_api(written: Callable) -> None:
    trace = load_trace(written("b.jsonl", lines(answer("r", {"input_tokens": 36, "output_tokens": 87}))))
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([36], [87])


def test_batch_without_counts_or_without_success(written: Callable, refused: Callable) -> None:
    message = refused(written("b.jsonl", lines(BATCH[0], answer("r9", {"prompt_tokens": 1}))))
    assert "line 2" in message
    assert "response.body.usage.completion_tokens is missing" in message
    assert "every request failed" in refused(written("c.jsonl", lines(BATCH[1], BATCH[3])))


def generation(second: str, details: dict[str, int], **more: Any) -> dict[str, Any]:
    start = f"2026-03-01T09:00:{second}Z"
    return {
        "id": second,
        "traceId": "t",
        "type": "GENERATION",
        "startTime": start,
        "usageDetails": details,
    } | more


LANGFUSE = [
    generation("00.000", {"input": 100, "input_cached_tokens": 400, "output": 20, "total": 520}),
    {"id": "s", "traceId": "t", "type": "SPAN", "startTime": "2026-03-01T09:00:00.1Z"},
    generation("01.250", {"input": 10, "cache_read_input_tokens": 90, "output": 5}),
    generation("02.000", {}, level="ERROR"),
    generation("03.000", {"input": 50, "input_cache_read": 30, "output": 6, "total": 56}),
    generation("04.000", {}, usage={"input": 8, "output": 3, "total": 11, "unit": "TOKENS"}),
]


@pytest.mark.parametrize("whole", [False, True])
def test_langfuse(whole: bool, written: Callable) -> None:
    text = json.dumps({"data": LANGFUSE, "meta": {"page": 1}}, indent=1) if whole else lines(*LANGFUSE)
    trace = load_trace(written("observations.json", text))
    assert trace.origin.format == "langfuse"
    assert trace.prompt_tokens.tolist() == [500, 100, 50, 8]  # the fourth's total says 30 of 50 were cached
    assert trace.output_tokens.tolist() == [20, 5, 6, 3]
    assert trace.arrival_ns.tolist() == [0, 1_250_000_000, 3_000_000_000, 4_000_000_000]
    assert [note[:2] for note in trace.origin.changes] == ["1 ", "1 "]


def test_langfuse_totals_are_checked(written: Callable, refused: Callable) -> None:
    message = refused(written("o.jsonl", lines(generation("00", {"input": 3, "output": 2, "total": 9}))))
    assert "line 1" in message
    assert "total 9" in message


def span(name: str, start: int, attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    listed = [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in attributes.items()
    ]
    return {"spanId": name, "startTimeUnixNano": str(start), "attributes": listed} | more


def usage(prompt: int, output: int, **more: str) -> dict[str, Any]:
    return {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": output} | {
        f"gen_ai.{key.replace('__', '.')}": value for key, value in more.items()
    }


def spans(*found: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(found)}]}]}


EPOCH = 1_772_355_600_000_000_000
OTLP = [
    spans(
        span("agent", EPOCH, usage(310, 30, operation__name="invoke_agent")),
        span("a", EPOCH + 5, usage(100, 10, operation__name="chat"), parentSpanId="agent"),
        span("tool", EPOCH + 9, {"gen_ai.tool.name": "search"}),
    ),
    spans(
        span("outer", EPOCH + 10, usage(210, 20)),
        span("b", EPOCH + 1_005, usage(210, 20), parentSpanId="outer"),
        span("c", EPOCH + 2_000, usage(1, 0), status={"code": 2}),
        span("d", EPOCH + 3_005, {"gen_ai.usage.prompt_tokens": 4, "gen_ai.usage.completion_tokens": 5}),
    ),
]


def test_otlp(written: Callable) -> None:
    trace = load_trace(written("traces.jsonl", lines(*OTLP)))
    assert trace.origin.format == "otlp"
    assert trace.prompt_tokens.tolist() == [100, 210, 4]
    assert trace.output_tokens.tolist() == [10, 20, 5]
    assert trace.arrival_ns.tolist() == [0, 1_000, 3_000]
    assert [note[:2] for note in trace.origin.changes] == ["1 ", "2 ", "1 "]


def test_otlp_over_several_lines_and_errors(written: Callable, refused: Callable) -> None:
    trace = load_trace(written("traces.json", json.dumps(OTLP[1], indent=2)))
    assert trace.prompt_tokens.tolist() == [210, 4]
    bad = spans(span("x", EPOCH, {"gen_ai.usage.input_tokens": 4}))
    message = refused(written("bad.jsonl", lines(OTLP[0], bad)))
    assert "line 2" in message
    assert "span 'x': gen_ai.usage.output_tokens is missing" in message
    assert "none of 1 spans" in refused(written("no.jsonl", lines(spans(span("t", EPOCH, {})))))


def call(name: str, second: str, lengths: tuple[int, int], status: str, hit: str) -> dict[str, Any]:
    times = {"startTime": f"2026-03-01 09:00:{second}", "endTime": "2026-03-01 09:00:59"}
    counts = {"prompt_tokens": lengths[0], "completion_tokens": lengths[1], "total_tokens": sum(lengths)}
    return {"request_id": name, "spend": 0.1} | times | counts | {"status": status, "cache_hit": hit}


LITELLM = [
    call("1", "00.5", (12, 3), "success", "None"),
    call("2", "01", (0, 0), "failure", ""),
    call("3", "02", (12, 3), "success", "True"),
    call("4", "03", (70, 9), "success", ""),
]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_litellm(kind: str, written: Callable) -> None:
    table = [",".join(LITELLM[0]), *(",".join(map(str, row.values())) for row in LITELLM)]
    text = json.dumps(LITELLM) if kind == "json" else "\n".join(table) + "\n"
    trace = load_trace(written(f"spend.{kind}", text))
    assert trace.origin.format == "litellm"
    assert trace.prompt_tokens.tolist() == [12, 70]
    assert trace.output_tokens.tolist() == [3, 9]
    assert trace.arrival_ns.tolist() == [0, 2_500_000_000]
    assert [note[:2] for note in trace.origin.changes] == ["1 ", "1 "]


SHAREGPT = [{"id": "x", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]}]
MESSAGES = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}
BATCH_INPUT = {"custom_id": "r", "method": "POST", "url": "/v1/chat/completions", "body": MESSAGES}
AIPERF_CSV = "Metric,avg,min,max,p99,p50,std\nRequest Latency (ms),12,1,20,19,11,3\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps(SHAREGPT), ["ShareGPT", "tokenizer", "tokens_per_word", "rate", "closed_loop"]),
        (json.dumps(SHAREGPT, indent=2), ["ShareGPT", "tokenizer", "pip install -e '.[text]'"]),
        (lines(*SHAREGPT), ["ShareGPT", "tokenizer"]),
        (lines(MESSAGES, MESSAGES), ["OpenAI messages", "tokenizer", "rate"]),
        (lines(BATCH_INPUT), ["OpenAI messages", "tokenizer", "rate"]),
        (AIPERF_CSV, ["AIPerf", "profile_export.jsonl"]),
    ],
)
def test_files_without_lengths(text: str, words: list[str], written: Callable, refused: Callable) -> None:
    message = refused(written("requests", text))
    assert all(word in message for word in words), message
