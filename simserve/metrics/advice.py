"""A change to a deployment that was simulated and found to help, as summary.json holds it and as words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GOODPUT, THROUGHPUT = "goodput", "throughput"


@dataclass(frozen=True)
class Advice:
    """One change and its effect over the first requests of the workload, the rest being equal."""

    change: str
    """In words: `fp8 KV`."""
    set: list[str]
    """What `simserve run --set` takes to make it: `pools.0.kv_dtype=fp8`."""
    measure: str
    """goodput or throughput, in requests/s."""
    before: float
    """Of the deployment as it is, over the same requests."""
    after: float
    effect: float
    """after / before - 1."""
    gpus: int
    """GPUs of the changed deployment."""
    requests: int
    """Requests that were simulated for each of the two."""
    carries: bool = False
    """The changed deployment carries a load that the deployment as it is does not."""


def advice_words(advice: Mapping[str, Any]) -> str:
    """Return `fp8 KV: +8.6 % goodput (checked with 800 requests)`."""
    carries = ", carries the load" if advice["carries"] else ""
    return (
        f"{advice['change']}: {advice['effect'] * 100:+.3g} % {advice['measure']}{carries} "
        f"(checked with {advice['requests']:,} requests)"
    )
