"""Is a prefill/decode split worth it? The answer of a comparison with and without one, in a sentence."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from simserve.metrics.store import StoredRun
from simserve.report.format import latency, number

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
    rates = (_rate(runs[one]), _rate(runs[other]))
    start = Markup("{}: on {} GPUs {} serves {} {}, {} without a split {}").format(
        _verdict(rates),
        _gpus(runs[one]),
        _code(one),
        number(rates[0]),
        _what(runs[one]),
        _code(other),
        number(rates[1]),
    )
    ttft = _both(runs[one], runs[other], "ttft_ms", "p50")
    gaps = _both(runs[one], runs[other], "itl_ms", "p99")
    return start + Markup("; median TTFT {}, p99 ITL {}.").format(ttft, gaps)


def _verdict(rates: tuple[float, float]) -> str:
    split, whole = rates
    if abs(split - whole) <= NOTABLE * max(split, whole):
        return "A split makes little difference to goodput"
    return "A split is worth it" if split > whole else "A split is not worth it"


def _best(runs: dict[str, StoredRun]) -> str:
    """Return the run with the most good requests/s, of those whose queue does not grow if there are any."""
    stable = {n: run for n, run in runs.items() if run.summary["stability"]["verdict"] != "unstable"} or runs
    return max(
        stable, key=lambda name: (_rate(stable[name]), -stable[name].summary["whole"]["e2e_ms"]["p50"])
    )


def _rate(run: StoredRun) -> float:
    whole: dict[str, Any] = run.summary["whole"]
    slo = whole["slo"]
    return (slo["goodput_requests_per_s"] if slo else whole["requests_per_s"]) or 0.0


def _what(run: StoredRun) -> str:
    return "requests/s within the SLO" if run.summary["whole"]["slo"] else "requests/s"


def _both(one: StoredRun, other: StoredRun, key: str, statistic: str) -> str:
    values = [run.summary["whole"][key][statistic] for run in (one, other)]
    return f"{latency(values[0])} against {latency(values[1])}"


def _gpus(run: StoredRun) -> int:
    return sum(pool["gpus"] for pool in run.summary["pools"])


def _code(name: str) -> Markup:
    return Markup("<code>{}</code>").format(name)
