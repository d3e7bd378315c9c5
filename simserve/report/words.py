"""The load of a run in words: how requests came, and how long they were."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from markupsafe import Markup, escape

from simserve.metrics.measures import percent as percent_words
from simserve.metrics.measures import trimmed
from simserve.units import GIB

# Numbers as people read them: three significant digits, no padded zeros, a unit, a dash for no data.

NONE = "–"
NBSP = "\u00a0"


def number(value: float | None) -> str:
    """Return 3 significant digits, or all digits of an integer, with thousands separators."""
    if value is None:
        return NONE
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size >= 99.95 or value == 0:
        return f"{value:,.0f}"
    decimals = 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return trimmed(f"{value:.{decimals}f}") if size >= 0.0995 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """Return a share in percent; never '100 %' for less than all, nor '0 %' for more than nothing."""
    if share is None:
        return NONE
    return percent_words(share).replace(" ", NBSP)


def money(value: float | None, currency: str = "$") -> str:
    """Return a price with its currency: `$30`, `$0.93`, `30 EUR`; cents where there are any."""
    if value is None:
        return NONE
    if value >= 99.95 or abs(value - round(value)) < 0.005:
        text = f"{value:,.0f}" if value >= 0.995 or value == 0 else f"{value:.3g}"
    else:
        text = f"{value:.2f}" if value >= 0.995 else _cents(value)
    return f"{text}{NBSP}{currency}" if currency[:1].isalpha() else f"{currency}{text}"


def _cents(value: float) -> str:
    """Return a price below 1 with three significant digits, at least two decimals."""
    text = f"{value:.3f}" if value >= 0.0995 else f"{value:.3g}"
    return text[:-1] if len(text) == 5 and text.endswith("0") else text


def latency(value_ms: float | None) -> str:
    """Return a latency with the unit that suits its size."""
    if value_ms is None:
        return NONE
    return f"{in_unit(value_ms, unit_of(value_ms))}{NBSP}{unit_of(value_ms)}"


def unit_of(value_ms: float | None) -> str:
    """Return `ms`, or `s` from one second on."""
    return "s" if value_ms is not None and value_ms >= 1000 else "ms"


def in_unit(value_ms: float | None, unit: str) -> str:
    """Return a latency as a bare number in `unit` (`ms` or `s`)."""
    if value_ms is None:
        return NONE
    return number(float(value_ms) / (1000 if unit == "s" else 1))


def duration(seconds: float | None) -> str:
    """Return a length of time: seconds, minutes or hours."""
    if seconds is None:
        return NONE
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{number(seconds / size)}{NBSP}{unit}"
    return f"{number(float(seconds))}{NBSP}s"


def gibibytes(count: float | None) -> str:
    """Return bytes as a bare number of GiB."""
    if count is None:
        return NONE
    return "< 0.01" if 0 < count < GIB / 100 else f"{count / GIB:,.2f}"


def gigabytes(count: float | None) -> str:
    """Return bytes as a bare number of GB (10^9)."""
    return NONE if count is None else number(count / 1e9)


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "percent": percent,
    "money": money,
    "latency": latency,
    "in_unit": in_unit,
    "duration": duration,
    "gib": gibibytes,
    "gigabytes": gigabytes,
}


# The manifest as the templates expect it: what it does not say is None, or an empty list.

_TOP = ("simserve_version", "command", "seed", "scenario_name", "trace", "model", "router", "fast_forward")
_TRACE = ("name", "format", "sha256", "requests")
_POOL = ("name", "gpu", "gpu_name", "replicas", "tp", "pp", "engine", "weights_dtype", "kv_dtype")
_LIMITS = ("kv_blocks", "kv_groups", "block_size", "max_model_len", "limit_reason")


def complete(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `manifest` in which every key that a page reads exists."""
    full = {**dict.fromkeys(_TOP), "currency": "$", "assumptions": [], "profiles": {}, **manifest}
    if full["trace"]:
        full["trace"] = {**dict.fromkeys(_TRACE), "assumptions": [], "changes": [], **full["trace"]}
    if full["model"]:
        full["model"] = {"name": None, "called": None, **full["model"]}
    full["pools"] = [
        {**dict.fromkeys(_POOL + _LIMITS), "ledger": [], "engine_options": {}, **pool}
        for pool in manifest.get("pools") or []
    ]
    for pool in full["pools"]:
        pool["ledger"] = [{"name": "?", "bytes": 0, "basis": "", **line} for line in pool["ledger"] or []]
    return full


def figure_of(summary: dict[str, Any], key: str) -> float | None:
    """Return a figure of summary.json by its path (`whole.ttft_ms.p99`); over several seeds, their mean.

    None where there is none; a measured run has rates of the whole only.
    """
    if key.startswith("rates.") and "rates" not in summary:
        key = key.replace("rates.", "whole.", 1)
    found: Any = (summary.get("replications") or {"measures": {}})["measures"].get(key)
    if found is not None:
        return found["mean"]
    found = summary
    for name in key.split("."):
        found = None if found is None else found.get(name)
    return found


# Words of a page that have a definition: shown when one points at them, or reaches them by keyboard.

_ALIASES = {
    "requests/s": "throughput",
    "output tokens/s": "throughput",
    "prompt + output tokens/s": "throughput",
    "goodput, requests/s": "goodput",
    "prefix hit rate": "hit rate",
    "E2E per token": "normalised latency",
    "KV mean": "KV use",
    "KV peak": "KV use",
    "tokens/step": "tokens per step",
    "preempt.": "preemptions",
    "recomputed": "recomputed tokens",
    "Prefix cache": "hit rate",
    "Queue": "stability",
    "cost per million output tokens": "cost",
    "gaps within the ITL limit": "SLO attainment",
}
"""Words of tables whose definition has another name."""


def definition_of(label: str, names: Iterable[str]) -> str | None:
    """Return the name of the definition that a label's words stand for: `TTFT, median` is TTFT."""
    known = set(names)
    for word in (label, _ALIASES.get(label), label.partition(",")[0], label.lower()):
        if word in known:
            return word
    return None


def anchor(name: str) -> str:
    """Return the id of a definition on its page."""
    return "def-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def term_filter(names: Iterable[str]) -> Callable[[str], Markup]:
    """Return what marks a label as one with a definition, if it has one among `names`."""
    known = list(names)

    def term(label: str) -> Markup:
        found = definition_of(label, known)
        if found is None:
            return escape(label)
        html = '<span class="term" tabindex="0" aria-describedby="{}">{}</span>'
        return Markup(html).format(anchor(found), label)

    return term


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
