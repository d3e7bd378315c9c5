"""Words of a page that have a definition: shown when one points at them, or reaches them by keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from markupsafe import Markup, escape

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
