"""A window of simulated time as people write it: `10s:20s`, `500ms:`, `:2m`."""

from __future__ import annotations

import re

from simserve.errors import ScenarioError
from simserve.units import NS_PER_MS, NS_PER_S

_UNITS_NS = {"ms": NS_PER_MS, "s": NS_PER_S, "m": 60 * NS_PER_S, "h": 3600 * NS_PER_S}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def parse_window(text: str) -> tuple[int, int]:
    """Return (start_ns, end_ns); raises ScenarioError with what is allowed."""
    start, colon, end = text.partition(":")
    start_ns = 0 if not start else _time_ns(start, text)
    end_ns = 1 << 62 if not end else _time_ns(end, text)
    if not colon or start_ns >= end_ns:
        raise ScenarioError(
            f"--window {text}: give two times, the earlier first, such as 10s:20s, 500ms: or :2m"
        )
    return start_ns, end_ns


def _time_ns(word: str, text: str) -> int:
    found = _TIME.fullmatch(word.strip())
    if found is None:
        raise ScenarioError(
            f"--window {text}: {word!r} is no time; write a number with ms, s, m or h: 10s:20s"
        )
    return round(float(found[1]) * _UNITS_NS[found[2]])
