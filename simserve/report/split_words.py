"""Is a prefill/decode split worth it? The answer of a comparison with and without one, in a sentence."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from simserve.metrics.store import StoredRun
from simserve.report.format import latency, number, percent

NOTABLE = 0.02
"""Relative difference of goodput below which neither is called better."""


def split_headline(runs: dict[str, StoredRun]) -> Markup | None:
    """Return the sentence for runs of which some are split and some are not; None for other comparisons."""
    able = {
        name: run for name, run in runs.items() if run.summary["counts"]["completed"] and not run.measured
    }
    splits = {name: run for name, run in able.items() if run.summary.get("split")}
    whole = {name: run for name, run in able.items() if name not in splits}
    if not splits or not whole or len({_gpus(run) for run in able.values()}) > 1:
        return None
    one, other = _best(splits), _best(whole)
    words = (_word(runs[one]), _word(runs[other]))
    gpus = Markup("on {} GPUs").format(_gpus(runs[one]))
    if words == ("missed", "missed"):
        return Markup("Both miss the SLO {}: {}.").format(gpus, _missed(runs, one, other))
    if words[1] == "met" != words[0]:  # the one that meets it first
        one, other, words = other, one, words[::-1]
    rates = (_rate(runs[one]), _rate(runs[other]))
    figures = Markup("{} against {} {}").format(number(rates[0]), number(rates[1]), _what(runs[one]))
    if words == ("inconclusive", "inconclusive"):
        found = Markup("Neither {} nor {} is shown to meet the SLO {}").format(_code(one), _code(other), gpus)
    elif words[0] == words[1]:
        slo = Markup("Both meet the SLO; a" if words[0] else "A")
        found = Markup("{} {} {}, {} against {}").format(slo, _verdict(rates), gpus, _code(one), _code(other))
    else:
        found = Markup("{} {} {}, {} {}").format(
            _code(one), _SLO[words[0]], gpus, _code(other), _SLO[words[1]].replace("the SLO", "it")
        )
    ttft = _both(runs[one], runs[other], "ttft_ms", "p50")
    return found + Markup(": {}, median TTFT {}.").format(figures, ttft)


_SLO = {
    "met": "meets the SLO",
    "missed": "misses the SLO",
    "inconclusive": "may not meet the SLO",
    "": "has no SLO",
}
"""What a run does with its SLO, by the word of its verdict."""


def _word(run: StoredRun) -> str:
    found = run.summary.get("slo_verdict")
    return found["outcome"] if found else ""


def _missed(runs: dict[str, StoredRun], one: str, other: str) -> Markup:
    """Return by how much both runs miss the SLO."""
    verdicts = [runs[name].summary["slo_verdict"] for name in (one, other)]
    words = [
        Markup("{} keeps {} within it (target: {})").format(
            _code(name), percent(found["kept"]), percent(found["target"])
        )
        for name, found in zip((one, other), verdicts, strict=True)
    ]
    return Markup(", ").join(words)


def _verdict(rates: tuple[float, float]) -> str:
    split, whole = rates
    if abs(split - whole) <= NOTABLE * max(split, whole):
        return "split makes little difference"
    return "split is worth it" if split > whole else "split is not worth it"


def _best(runs: dict[str, StoredRun]) -> str:
    """Return the run with the most good requests/s, of those that meet the SLO or else carry the load."""
    runs = {name: run for name, run in runs.items() if _word(run) == "met"} or runs
    stable = {n: run for n, run in runs.items() if run.summary["stability"]["verdict"] != "unstable"} or runs
    return max(
        stable, key=lambda name: (_rate(stable[name]), -stable[name].summary["whole"]["e2e_ms"]["p50"])
    )


def _rate(run: StoredRun) -> float:
    rates: dict[str, Any] = run.summary["rates"]
    goodput = rates["goodput_requests_per_s"]
    return (rates["requests_per_s"] if goodput is None else goodput) or 0.0


def _what(run: StoredRun) -> str:
    return "good requests/s" if run.summary["whole"]["slo"] else "requests/s"


def _both(one: StoredRun, other: StoredRun, key: str, statistic: str) -> str:
    values = [run.summary["whole"][key][statistic] for run in (one, other)]
    return f"{latency(values[0])} against {latency(values[1])}"


def _gpus(run: StoredRun) -> int:
    return sum(pool["gpus"] for pool in run.summary["pools"])


def _code(name: str) -> Markup:
    return Markup("<code>{}</code>").format(name)
