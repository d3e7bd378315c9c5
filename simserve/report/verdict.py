"""Whether a run keeps its SLO, in words: met, missed, or not shown by so few seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from simserve.metrics.distribution import PERCENTILES
from simserve.report.format import latency, percent
from simserve.report.headline import LIMIT_WORDS, limits_in_words


class Verdict(NamedTuple):
    """The verdict about one run."""

    word: str
    """met, missed or not shown."""
    text: str


def verdict(summary: dict[str, Any], manifest: dict[str, Any]) -> Verdict | None:
    """Return the verdict on the whole run, held against the scenario's targets; None without an SLO."""
    asked = manifest.get("slo_asked")
    if not asked:
        return None
    found = [*_shares(summary, asked["attainment"]), *_percentiles(summary, asked["percentiles"])]
    if not found:
        return None
    words = {one.word for one in found}
    word = "missed" if "missed" in words else "not shown" if "not shown" in words else "met"
    return Verdict(word, "; ".join(one.text for one in found))


def asked_words(summary: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Return what the scenario asks for, in words; nothing without an SLO."""
    asked, found = manifest.get("slo_asked"), summary["whole"]["slo"]
    if not asked or found is None:
        return ""
    own = {name: limit for name, limit in found["limits"].items() if name != "itl_ms"}
    words = [f"{percent(asked['attainment'])} of the requests with {limits_in_words(own)}"] if own else []
    if "itl_ms" in found["limits"]:
        gaps = limits_in_words({"itl_ms": found["limits"]["itl_ms"]})
        words.append(f"{percent(asked['attainment'])} of the gaps with {gaps}")
    for key, targets in asked["percentiles"].items():
        words += [f"{name} of {LIMIT_WORDS[key]} ≤ {latency(limit)}" for name, limit in targets.items()]
    return "; ".join(words)


def _shares(summary: dict[str, Any], asked: float) -> list[Verdict]:
    if summary["whole"]["slo"] is None:
        return []  # the scenario sets percentiles alone
    limits = summary["whole"]["slo"]["limits"]
    own = {name: limit for name, limit in limits.items() if name != "itl_ms"}
    found: list[Verdict] = []
    if own:
        found.append(_share(summary, "attainment", asked, f"of requests stay within {limits_in_words(own)}"))
    if "itl_ms" in limits:
        words = f"of gaps stay within {limits_in_words({'itl_ms': limits['itl_ms']})}"
        found.append(_share(summary, "itl_within_share", asked, words))
    return found


def _share(summary: dict[str, Any], name: str, asked: float, words: str) -> Verdict:
    value, low, high = _over_seeds(summary, f"whole.slo.{name}", summary["whole"]["slo"][name])
    if value is None:
        return Verdict("missed", f"nothing is known {words} (target: {percent(asked)})")
    text = f"{percent(value)} {words} (target: {percent(asked)})"
    return Verdict(_judge(value, low, high, lambda share: share >= asked), text)


def _percentiles(summary: dict[str, Any], asked: dict[str, dict[str, float]]) -> list[Verdict]:
    """Return a verdict for each percentile target; none can be given about those that a run does not keep."""
    return [
        _percentile(summary, key, name, limit)
        for key, targets in asked.items()
        for name, limit in targets.items()
    ]


def _percentile(summary: dict[str, Any], key: str, name: str, limit: float) -> Verdict:
    words = f"{name} of {LIMIT_WORDS[key]}"
    if name not in {f"p{number}" for number in PERCENTILES}:
        return Verdict("not shown", f"{words} is not among what a run keeps (target: {latency(limit)})")
    value, low, high = _over_seeds(summary, f"whole.{key}.{name}", summary["whole"][key][name])
    if value is None:
        return Verdict("missed", f"{words} is unknown (target: {latency(limit)})")
    text = f"{words} is {latency(value)} (target: {latency(limit)})"
    return Verdict(_judge(value, low, high, lambda found: found <= limit), text)


def _over_seeds(
    summary: dict[str, Any], key: str, own: float | None
) -> tuple[float | None, float | None, float | None]:
    """Return a number with the ends of its interval: the mean over the seeds where there are several."""
    block = summary.get("replications")
    if not block:
        return own, None, None
    found = block["measures"].get(key, {"mean": None, "low": None, "high": None})
    return found["mean"], found["low"], found["high"]


def _judge(value: float, low: float | None, high: float | None, keeps: Callable[[float], bool]) -> str:
    """Return what a number says about a target; the ends of its interval, if any, must agree."""
    if low is not None and high is not None and keeps(low) != keeps(high):
        return "not shown"
    return "met" if keeps(value) else "missed"
