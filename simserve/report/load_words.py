"""The load of a run in words: how requests came, and how long they were."""

from __future__ import annotations

from typing import Any

from simserve.report.format import number

LOAD = frozenset({"rate", "rate_scale", "rate_per_s", "users", "concurrency", "requests"})
"""Last parts of settings that say how much is asked for: nobody chooses them for their cost."""


def load_in_words(summary: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Return `4.07 requests/s offered; 4,000 prompt and 200 output tokens on average`."""
    workload, counts = manifest.get("workload") or {}, summary["counts"]
    parts = [_arrivals(summary, workload), _lengths(counts)]
    return "; ".join(part for part in parts if part)


def _arrivals(summary: dict[str, Any], workload: dict[str, Any]) -> str:
    closed = workload.get("closed_loop") or {}
    if closed.get("users"):
        return f"{number(closed['users'])} users, who pause between requests"
    if closed.get("concurrency"):
        return f"closed loop of {number(closed['concurrency'])} requests in flight"
    rate = offered_per_s(summary, workload)
    if rate is None:
        return ""
    words = f"{number(rate)} requests/s offered"
    scale = workload.get("rate_scale", 1.0)
    if scale == 1.0:
        return words
    return f"{words}, {number(float(scale))} times the trace's rate"


def loaded(summary: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Return the load as a phrase: `at 4.07 requests/s`, `with 64 requests in flight`; empty if not known."""
    workload = manifest.get("workload") or {}
    closed = workload.get("closed_loop") or {}
    if closed.get("users"):
        return f"with {number(closed['users'])} users"
    if closed.get("concurrency"):
        return f"with {number(closed['concurrency'])} requests in flight"
    rate = offered_per_s(summary, workload)
    return f"at {number(rate)} requests/s" if rate is not None else ""


def offered_per_s(summary: dict[str, Any], workload: dict[str, Any]) -> float | None:
    """Return the arrivals per second; None in a closed loop, where answers set the pace."""
    period_s, arrived = summary["stability"]["arrival_period_s"], summary["counts"]["arrived"]
    if (workload.get("closed_loop") or {}) or not period_s or arrived < 2:
        return None
    return (arrived - 1) / period_s


def _lengths(counts: dict[str, Any]) -> str:
    done = counts["completed"]
    if not done:
        return ""
    prompt, output = (number(counts[name] / done) for name in ("prompt_tokens", "output_tokens"))
    return f"{prompt} prompt and {output} output tokens on average"
