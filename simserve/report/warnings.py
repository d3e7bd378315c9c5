"""What a reader must know before believing a run: what it warned of itself, and what its numbers say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from simserve.metrics.stability import too_short_words
from simserve.report.words import number, percent

EXTRAPOLATED = 0.05
"""Share of simulated time outside the measured range of the kernels from which on it is said first."""

ESTIMATED = 0.05
"""Share of simulated time costed without any table from which on it is said first."""

ALL_ESTIMATED = 0.999
"""Share of simulated time costed without any table from which on the run is called an estimate."""


class Notice(NamedTuple):
    """One warning."""

    text: str
    share: float | None = None
    """Share of the simulated time that the warning is about, if it is about one."""
    of: str = ""
    """What is said of that share: warnings with the same words are one where several runs have them."""


_ESTIMATED_WORDS = "of the simulated time is estimated by roofline: those kernels were not measured"
_EXTRAPOLATED_WORDS = "of the simulated time is extrapolated: outside the sizes that were measured"


def warnings(summary: dict[str, Any]) -> list[str]:
    """Return a line per warning, the most serious first."""
    return [notice.text for notice in notices(summary)]


def basis_notices(shares: Mapping[str, float | None]) -> list[Notice]:
    """Return warnings of step times outside what was measured, from their shares of the simulated time."""
    extrapolated, estimated = shares.get("extrapolated") or 0.0, shares.get("analytic") or 0.0
    found = []
    if estimated > ALL_ESTIMATED:
        found.append(
            Notice(
                "All of it is estimated: no kernel of this GPU and model was measured, so every step time is "
                "a roofline at assumed efficiencies."
            )
        )
    elif estimated > ESTIMATED:
        found.append(Notice(f"{percent(estimated)} {_ESTIMATED_WORDS}.", estimated, _ESTIMATED_WORDS))
    if extrapolated > EXTRAPOLATED:
        found.append(
            Notice(f"{percent(extrapolated)} {_EXTRAPOLATED_WORDS}.", extrapolated, _EXTRAPOLATED_WORDS)
        )
    return found


def notices(summary: dict[str, Any]) -> list[Notice]:
    """Return the warnings of a run, the most serious first."""
    counts = summary["counts"]
    lines: list[str] = []
    if summary["stability"]["verdict"] == "unstable":
        lines.append(
            "Overloaded: the queue never stopped growing, so latencies depend only on how long you simulate. "
            f"{_sentence(summary['stability']['reason'])}"
        )
    if summary["stability"]["verdict"] == "too short":
        lines.append(_sentence(too_short_words(summary["stability"])))
    lines += [_sentence(line) for line in summary["warnings"]]
    for what in ("refused", "abandoned", "unfinished"):
        if counts.get(what):
            lines.append(
                f"{number(counts[what])} of {number(counts['requests'])} requests were {what}"
                + (" by their clients." if what == "abandoned" else ".")
            )
    if counts.get("wasted_tokens"):
        lines.append(f"{number(counts['wasted_tokens'])} output tokens were made for clients that had gone.")
    return [*map(Notice, lines), *basis_notices(summary["provenance"])]


def merged(by_run: Mapping[str, list[Notice]]) -> list[Markup]:
    """Return the warnings of several runs, each said once with the runs that it is about."""
    names: dict[str, list[tuple[str, Notice]]] = {}
    for run, found in by_run.items():
        for notice in found:
            names.setdefault(notice.of or notice.text, []).append((run, notice))
    lines = []
    for words, said in names.items():
        runs = [run for run, _ in said]
        if said[0][1].share is not None:
            shares = [notice.share or 0.0 for _, notice in said]
            least, most = percent(min(shares)), percent(max(shares))
            text = f"{most if least == most else f'{least} to {most}'} {words}."
        else:
            text = words
        where = Markup("") if len(runs) == len(by_run) else Markup("{}: ").format(_listed(runs))
        lines.append(where + text)
    return lines


MOST_NAMES = 3
"""Runs that a warning names; more are counted."""


def _listed(runs: list[str]) -> Markup:
    if len(runs) > MOST_NAMES:
        return Markup("{} runs").format(len(runs))
    return Markup(", ").join(Markup("<code>{}</code>").format(run) for run in runs)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


# What the runs of a study warned of, each line once.

MOST = 5


def study_warnings(study: dict[str, Any]) -> list[str]:
    """Return the warnings of a study's points with how many points each is about, the rest counted."""
    rows = study["points"] if "points" in study else [*study["feasible"], *study["missed"]]
    rows = [row for row in rows if "warnings" in row]
    counts = Counter(line for row in rows for line in dict.fromkeys(row["warnings"]))
    found = [
        line if n == len(rows) else f"{line} ({n:,} of {len(rows):,} deployments)"
        for line, n in counts.items()
    ]
    more = len(found) - MOST
    return found[:MOST] + ([f"{more:,} more warnings of single runs are in study.json"] if more > 0 else [])
