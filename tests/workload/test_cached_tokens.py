"""No reader takes more cached tokens than a prompt has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from simserve.workload import load_trace

START = "2026-03-01T09:00:00Z"


def table(cached: object) -> str:
    return f"ts,input_tokens,output_tokens,cached_tokens\n1772355600,100,5,100\n1772355601,100,5,{cached}\n"


def plain(cached: object) -> str:
    return f"arrival_s,prompt_tokens,output_tokens,cached_tokens\n0,100,5,100\n1,100,5,{cached}\n"


def batch(cached: object) -> str:
    def row(n: object) -> dict[str, Any]:
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": n},
        }
        return {"custom_id": "a", "response": {"status_code": 200, "body": {"usage": usage}}}

    return "\n".join(json.dumps(row(n)) for n in (100, cached))


def langfuse(cached: object) -> str:
    def row(n: object) -> dict[str, Any]:
        usage = {"input": 100, "output": 5, "input_cached_tokens": n, "total": 105}
        return {"traceId": "t", "startTime": START, "usageDetails": usage}

    return "\n".join(json.dumps(row(n)) for n in (100, cached))


def otlp(cached: object) -> str:
    def row(n: object) -> dict[str, Any]:
        counts = {"input_tokens": 100, "output_tokens": 5, "cache_read.input_tokens": n}
        attributes = [
            {"key": f"gen_ai.usage.{key}", "value": {"intValue": str(v)}} for key, v in counts.items()
        ]
        span = {"spanId": "s", "startTimeUnixNano": "1772355600000000000", "attributes": attributes}
        return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}

    return "\n".join(json.dumps(row(n)) for n in (100, cached))


def litellm(cached: object) -> str:
    def row(n: object) -> dict[str, Any]:
        usage = {"usage_object": {"prompt_tokens_details": {"cached_tokens": n}}}
        counts = {"prompt_tokens": 100, "completion_tokens": 5, "spend": 0.1, "status": "success"}
        return {"startTime": "2026-03-01 09:00:00", "metadata": usage} | counts

    return "\n".join(json.dumps(row(n)) for n in (100, cached))


@pytest.mark.parametrize("make", [table, plain, batch, langfuse, otlp, litellm])
def test_cached_tokens_are_part_of_the_prompt(
    make: Callable[[object], str], written: Callable, refused: Callable
) -> None:
    assert load_trace(written("t", make(100))).prompt_tokens.tolist() == [100, 100]
    message = refused(written("t", make(101)))
    assert "line 2" in message or "line 3" in message
    assert "101" in message
    assert "allowed" in message


@pytest.mark.parametrize("make", [table, plain, batch, otlp, litellm])
@pytest.mark.parametrize("bad", ["many", -1, 0.5])
def test_cached_tokens_are_a_number(
    bad: object, make: Callable[[object], str], written: Callable, refused: Callable
) -> None:
    assert str(bad) in refused(written("t", make(bad)))
