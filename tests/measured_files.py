"""Small files in the shape that each load generator writes; the same four requests in all of them.

Requests (prompt, output, TTFT ms, E2E ms): a (90, 3, 110, 170), b (40, 2, 90, 120); c fails; d is warm-up, or
has no first token on file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VLLM: dict[str, Any] = {
    "date": "20260101-000000",
    "endpoint_type": "openai",
    "model_id": "m",
    "num_prompts": 4,
    "request_rate": 2.0,
    "duration": 2.0,
    "completed": 3,
    "failed": 1,
    "request_throughput": 1.5,
    "output_throughput": 3.0,
    "mean_ttft_ms": 100.0,
    "median_ttft_ms": 100.0,
    "p99_ttft_ms": 109.8,
    "mean_tpot_ms": 30.0,
    "mean_itl_ms": 30.0,
    "mean_e2el_ms": 145.0,
    "input_lens": [40, 90, 7, 8],
    "output_lens": [2, 3, 0, 5],
    "ttfts": [0.09, 0.11, 0.0, 0.0],
    "itls": [[0.03], [0.02, 0.04], [], []],
    "start_times": [10.4, 10.0, 11.0, 12.0],
    "errors": ["", "", "timed out", ""],
}
DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")


def sglang(details: bool = True) -> dict[str, Any]:
    """One line of bench_serving."""
    line = {key: value for key, value in VLLM.items() if key not in ("start_times", "mean_e2el_ms")}
    line |= {"tag": None, "backend": "sglang", "mean_e2e_latency_ms": 145.0, "accept_length": None}
    return line if details else {key: value for key, value in line.items() if key not in DETAILS}


def aiperf(
    start_ms: float = 0,
    ttft_ms: float = 110,
    e2e_ms: float = 170,
    tokens: tuple[int, int] = (90, 3),
    **changes: Any,
) -> dict[str, Any]:
    """One line of profile_export.jsonl; `changes` go into the metadata, or replace error and metrics."""
    start_ns = 1_759_813_207_532_900_363 + round(start_ms * 1e6)
    error = changes.pop("error", None)
    metrics = {
        "time_to_first_token": {"value": ttft_ms, "unit": "ms"},
        "request_latency": {"value": e2e_ms, "unit": "ms"},
        "inter_token_latency": {"value": (e2e_ms - ttft_ms) / (tokens[1] - 1), "unit": "ms"},
        "input_sequence_length": {"value": tokens[0], "unit": "tokens"},
        "output_sequence_length": {"value": tokens[1], "unit": "tokens"},
    } | changes.pop("metrics", {})
    metadata = {
        "session_num": 0,
        "x_request_id": "r",
        "turn_index": 0,
        "request_start_ns": start_ns,
        "request_end_ns": start_ns + round(e2e_ms * 1e6),
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    return {"metadata": metadata | changes, "metrics": metrics, "error": error}


def aiperf_run() -> list[dict[str, Any]]:
    """The four requests."""
    return [
        aiperf(400, 90, 120, (40, 2)),
        aiperf(),
        aiperf(1000, error={"code": 500, "type": "InternalServerError", "message": "x"}),
        aiperf(-5000, benchmark_phase="warmup"),
    ]


AIPERF_SUMMARY: dict[str, Any] = {
    "request_throughput": {"unit": "requests/sec", "avg": 1.5},
    "request_latency": {"unit": "ms", "avg": 145.0, "p50": 145.0, "p99": 169.5, "min": 120.0, "max": 170.0},
    "time_to_first_token": {"unit": "ms", "avg": 100.0, "p50": 100.0, "p90": 108.0, "p99": 109.8},
    "inter_token_latency": {"unit": "ms", "avg": 30.0, "p50": 30.0},
    "request_count": {"unit": "requests", "avg": 2.0},
    "benchmark_duration": {"unit": "sec", "avg": 2.0},
    "error_summary": [{"error_details": {"code": 500}, "count": 1}],
}


def genai_perf() -> dict[str, Any]:
    """profile_export.json of two requests, in streamed chunks, the first and last without text."""

    def chunks(texts: list[str]) -> list[dict[str, str]]:
        deltas = [{"role": "assistant"}, *({"content": text} for text in texts), {}]
        lines = [json.dumps({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
        return [{"response": f"data: {line}\n\n"} for line in lines] + [{"response": "data: [DONE]\n\n"}]

    def request(start_ms: int, stamps_ms: list[int], texts: list[str]) -> dict[str, Any]:
        return {
            "timestamp": start_ms * 1_000_000,
            "request_inputs": {"payload": "{}"},
            "response_timestamps": [ms * 1_000_000 for ms in stamps_ms],
            "response_outputs": chunks(texts),
        }

    a = request(1000, [1100, 1110, 1130, 1170, 1171, 1172], ["I", " like", " dogs"])
    b = request(1400, [1480, 1490, 1520, 1521, 1522], ["No", "."])
    return {
        "service_kind": "openai",
        "endpoint": "v1/chat/completions",
        "experiments": [{"experiment": {"mode": "concurrency", "value": 2}, "requests": [a, b]}],
    }


def guidellm(sampled: int = 0) -> dict[str, Any]:
    """benchmarks.json of one benchmark; `sampled` requests more succeeded than are on file."""

    def request(start: float, ttft: float, e2e: float, tokens: tuple[int, int]) -> dict[str, Any]:
        at = 1_700_000_000.0 + start
        timings = {"request_start": at, "first_token_iteration": at + ttft, "last_token_iteration": at + e2e}
        return {
            "request_id": "r",
            "info": {"timings": timings | {"request_end": at + e2e + 0.001}},
            "prompt_tokens": tokens[0],
            "output_tokens": tokens[1],
        }

    ttft = {"mean": 100.0, "median": 100.0, "percentiles": {"p50": 100.0, "p99": 109.8}}
    return {
        "metadata": {},
        "benchmarks": [
            {
                "duration": 2.0,
                "scheduler_metrics": {
                    "requests_made": {"successful": 2 + sampled, "errored": 1, "incomplete": 1}
                },
                "metrics": {
                    "time_to_first_token_ms": {"successful": ttft},
                    "request_latency": {"successful": {"mean": 0.145, "median": 0.145}},
                    "inter_token_latency_ms": {"successful": {"mean": 30.0, "percentiles": {"p99": 40.0}}},
                    "time_per_output_token_ms": {"successful": {"mean": 58.0}},
                    "requests_per_second": {"successful": {"mean": 1.5}},
                },
                "requests": {
                    "successful": [request(0.4, 0.09, 0.12, (40, 2)), request(0, 0.11, 0.17, (90, 3))],
                    "errored": [{}],
                    "incomplete": [{}],
                },
            }
        ],
    }


def inference_perf(new: bool = True) -> list[dict[str, Any]]:
    """per_request_lifecycle_metrics.json, in the shape of now or of 2025."""

    def request(
        start: float, stamps: list[float], tokens: tuple[int, int], error: Any = None
    ) -> dict[str, Any]:
        times = [start + stamp for stamp in stamps]
        old = {"input_tokens": tokens[0], "output_tokens": tokens[1], "output_token_times": times}
        response = {"output_tokens": tokens[1] + 1, "output_token_times": times}
        response |= {"server_usage": {"completion_tokens": tokens[1]}}
        shaped = {"request_metrics": {"text": {"input_tokens": tokens[0]}}, "response_metrics": response}
        end = (times or [start])[-1] + 0.001
        return {
            "start_time": start,
            "end_time": end,
            "request": json.dumps({"prompt": "x" * tokens[0]}),
            "response": "",
            "info": shaped if new else old,
            "error": error,
        }

    return [
        request(5000.4, [0.09, 0.12], (40, 2)),
        request(5000.0, [0.11, 0.13, 0.17], (90, 3)),
        request(5001.0, [], (7, 0), {"error_type": "Timeout", "error_msg": "x"}),
    ]


def _seconds(mean: float, p99: float) -> dict[str, float]:
    return {"mean": mean, "min": 0.0, "max": p99, "median": mean, "p99": p99}


INFERENCE_PERF_SUMMARY: dict[str, Any] = {
    "benchmark_time_seconds": 2.0,
    "load_summary": {"count": 3},
    "successes": {
        "count": 2,
        "latency": {
            "request_latency": _seconds(0.145, 0.1695),
            "normalized_time_per_output_token": _seconds(0.058, 0.06),
            "time_per_output_token": _seconds(0.03, 0.03),
            "time_to_first_token": _seconds(0.1, 0.1098),
            "inter_token_latency": _seconds(0.03, 0.0398),
        },
        "throughput": {"requests_per_sec": 1.5, "output_tokens_per_sec": 3.0},
    },
    "failures": {"count": 1},
}


def llm_d(tool: str = "inference-perf", version: str = "0.2", unit: str = "s") -> dict[str, Any]:
    """A benchmark report of either version."""
    scale = {"s": 1e-3, "ms": 1.0}.get(unit, 1.0)
    latency = {
        "time_to_first_token": {"units": unit, "mean": 100 * scale, "p50": 100 * scale, "p99": 109.8 * scale},
        "time_per_output_token": {"units": f"{unit}/token", "mean": 30 * scale},
        "inter_token_latency": {"units": f"{unit}/token", "mean": 31 * scale, "p99": 40 * scale},
        "request_latency": {"units": unit, "mean": 145 * scale},
    }
    requests = {"total": 3, "failures": 1}
    if version == "0.1":
        results = {"requests": requests, "latency": latency, "throughput": {"requests_per_sec": 1.5}}
        return {"version": version, "scenario": {"load": {"name": tool}}, "metrics": results}
    results = {
        "requests": requests,
        "latency": latency,
        "throughput": {"request_rate": {"units": "queries/s", "mean": 1.5}},
    }
    return {
        "version": version,
        "scenario": {"load": {"standardized": {"tool": tool}}},
        "results": {"request_performance": {"aggregate": results}},
    }


def write(path: Path, value: Any) -> Path:
    """Write a value as JSON, or a list as JSON lines if the name ends so."""
    lines = path.suffix == ".jsonl"
    text = "\n".join(json.dumps(one) for one in value) + "\n" if lines else json.dumps(value)
    path.write_text(text, encoding="utf-8")
    return path
