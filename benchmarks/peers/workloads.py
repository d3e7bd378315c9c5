"""The workloads on which peers are compared, each as one Mooncake JSONL file that every side reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed import closed_loop_trace, find_trace
from simserve.core import Trace
from simserve.workload import load_trace

BLOCK_TOKENS = 512
"""Prompt tokens per hash id in Mooncake's format."""

_AZURE = "azure_llm_2023_conv"


class Unavailable(Exception):
    """Something that a comparison needs is not here; the message says what."""


@dataclass(frozen=True)
class Workload:
    """Requests and the deployment that serves them."""

    title: str
    trace: Callable[[], Trace]
    workers: int
    concurrency: int | None = None
    """Clients of a closed loop; None: arrivals at the recorded times."""


def _azure() -> Trace:
    path = find_trace(_AZURE)
    if path is None:
        raise Unavailable(f"the trace {_AZURE} is not here (simserve trace fetch)")
    return load_trace(path)


WORKLOADS = {
    "conv-1": Workload("Azure conversation, 1 worker", _azure, 1),
    "conv-4": Workload("Azure conversation, 4 workers", _azure, 4),
    "closed": Workload(
        "closed loop, 256 clients, 1,000 output tokens", lambda: closed_loop_trace(2560, 512, 1000), 1, 256
    ),
}


def write_mooncake(trace: Trace, path: Path) -> None:
    """Write `trace` as Mooncake JSONL, milliseconds with all digits; no two prompts share a block."""
    next_id = 0
    columns = (trace.arrival_ns.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist())
    with path.open("w") as file:
        for arrival_ns, prompt_tokens, output_tokens in zip(*columns, strict=True):
            end_id = next_id + -(-prompt_tokens // BLOCK_TOKENS)
            row = {
                "timestamp": arrival_ns / 1e6,
                "input_length": prompt_tokens,
                "output_length": output_tokens,
                "hash_ids": list(range(next_id, end_id)),
            }
            file.write(json.dumps(row) + "\n")
            next_id = end_id
