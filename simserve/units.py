"""Units: integer nanoseconds and bytes inside, friendly units at the edges.

Every latency is rounded to a nanosecond once, where it is made; nothing downstream rounds again.
"""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

GB = 1_000_000_000
GIB = 1 << 30
TERA = 1_000_000_000_000


def seconds_to_ns(seconds: float) -> int:
    """Round `seconds` to whole nanoseconds."""
    return round(seconds * NS_PER_S)


def ms_to_ns(milliseconds: float) -> int:
    """Round `milliseconds` to whole nanoseconds."""
    return round(milliseconds * NS_PER_MS)
