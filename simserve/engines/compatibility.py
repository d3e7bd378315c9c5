"""What combines with what, and why the rest is refused: one table, for features and for engines.

A *feature* is something that a scenario asks of a pool or of the whole deployment. `TOGETHER` has the pairs
of features that cannot be combined, whatever the engine; `engine_refusal` says what an engine lacks, which
follows from its `Engine`. docs/engines.md prints both:
`python -m simserve.engines.compatibility docs/engines.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from simserve.engines.engine import Engine
from simserve.engines.presets import ENGINES
from simserve.errors import ScenarioError

Feature = Literal[
    "pp",
    "ranks",
    "ep",
    "all2all",
    "overlap",
    "afd",
    "kv_tiers",
    "speculation",
    "windows",
    "prefill",
    "decode",
    "role_switch",
    "give_up_s",
]
FEATURES: Mapping[Feature, str] = {
    "pp": "pp above 1",
    "ranks": "dp, placement, all2all or overlap",
    "ep": "ep above 1",
    "all2all": "all2all",
    "overlap": "overlap",
    "afd": "afd",
    "kv_tiers": "kv_tiers",
    "speculation": "speculation",
    "windows": "KV groups of window layers",
    "prefill": "role: prefill",
    "decode": "role: decode",
    "role_switch": "role_switch",
    "give_up_s": "workload.give_up_s",
}
"""What a scenario asks for, in the words of its keys."""


class Refusal(NamedTuple):
    """Two features that cannot be had at once."""

    one: Feature
    """The one whose key a message names."""
    other: Feature
    reason: str
    allowed: str = ""
    """The value of `one` that goes with the other, if any does."""


_RANKS_STEP = "ranks that step together have no tiers"
TOGETHER = (
    Refusal("pp", "afd", "stages of layers and FFN GPUs are not simulated together", "1"),
    Refusal("ep", "afd", "experts spread over afd.ffn_gpus", "1"),
    Refusal("kv_tiers", "afd", _RANKS_STEP),
    Refusal("all2all", "afd", "afd.exchange says how tokens get to the FFN GPUs"),
    Refusal("overlap", "afd", "afd.microbatches overlap instead"),
    Refusal("pp", "ranks", "pipeline stages of ranks that step together are not simulated", "1"),
    Refusal("kv_tiers", "ranks", _RANKS_STEP),
    Refusal("pp", "kv_tiers", "stages that load KV from tiers are not simulated", "1"),
    Refusal("pp", "speculation", "drafts with pipeline stages are not simulated", "1"),
    Refusal("kv_tiers", "speculation", "drafts beside KV from tiers are not simulated"),
    Refusal("afd", "speculation", "drafts with FFN GPUs are not simulated"),
    Refusal(
        "speculation",
        "windows",
        "not simulated; set disable_hybrid_kv_cache_manager: true to keep all tokens",
    ),
    Refusal("speculation", "prefill", "it makes one token per prompt; speculate on the decode pool"),
    Refusal("pp", "decode", "decode pools have no pipeline yet", "1"),
    Refusal("kv_tiers", "decode", "decode pools with tiers are not simulated"),
    Refusal("role_switch", "speculation", "replicas that speculate cannot change sides"),
    Refusal("role_switch", "pp", "replicas with pipeline stages cannot change sides"),
    Refusal("role_switch", "ranks", "replicas with attention ranks cannot change sides"),
    Refusal("give_up_s", "prefill", "clients that give up are not simulated with a prefill/decode split"),
    Refusal("give_up_s", "decode", "clients that give up are not simulated with a prefill/decode split"),
)
"""In the order in which they are looked for."""

WINDOWS_KEPT_WHOLE: Mapping[Feature, str] = {
    "kv_tiers": "KV tiers keep whole blocks",
    "prefill": "KV is handed over in whole blocks",
    "decode": "KV is handed over in whole blocks",
    "pp": "pipeline stages with groups are not modelled",
}
"""Features with which window layers keep the KV of all tokens; that is allowed, and the report says so."""


def engine_refusal(engine: Engine, feature: Feature) -> str | None:
    """Return why an engine cannot have a feature; None if it can, or if any engine can."""
    match feature:
        case "pp" if not engine.pp:
            return "its scheduler is modelled without pipeline stages"
        case "kv_tiers" if not engine.kv_tiers:
            return "its scheduler does not look for KV below HBM"
        case "speculation" if engine.spec_decode is None:
            return "its verification windows and slots are not simulated"
        case "windows" if engine.windows is None:
            return "it has no pools for windows here"
        case "prefill" | "decode" | "role_switch" if engine.disagg is None:
            return "it cannot be split into prefill and decode"
        case "role_switch" if engine.disagg is not None and engine.disagg.prefill is not engine.disagg.decode:
            return "its prefill and decode replicas cannot change sides"
        case "give_up_s" if not engine.aborts:
            return "its scheduler cannot drop a request: it has no method `drop`"
        case _:
            return None


def check_together(asked: Mapping[Feature, Any]) -> None:
    """Raise `ScenarioError` for the first pair of features that cannot be combined.

    `asked`: what is asked for, each with its value; None for a mapping or a list.
    """
    for one, other, reason, allowed in TOGETHER:
        if one in asked and other in asked:
            message = f"cannot be combined with {FEATURES[other]}: {reason}"
            raise ScenarioError(message, one, asked[one], allowed)


def check_engine(engine: Engine, label: str, asked: Mapping[Feature, Any]) -> None:
    """Raise `ScenarioError` for the first feature that the engine, called `label`, does not have."""
    for feature, value in asked.items():
        reason = engine_refusal(engine, feature)
        if reason is not None:
            key = "role" if feature in ("prefill", "decode") else feature
            able = ", ".join(sorted(it.name for it in _scheduling() if engine_refusal(it, feature) is None))
            message = f"is not possible with {label}: {reason}; engines that can: {able}"
            raise ScenarioError(message, key, value)


def _scheduling() -> list[Engine]:
    """Return the engines whose schedulers are modelled."""
    return [engine for engine in ENGINES.values() if engine.scheduler is not None]


# The tables of docs/engines.md, made from the above.

BEGIN, END = "<!-- compatibility: begin -->", "<!-- compatibility: end -->"
_ENGINE_FEATURES: tuple[Feature, ...] = (
    "pp", "kv_tiers", "windows", "speculation", "prefill", "role_switch", "give_up_s",
)  # fmt: skip


def tables() -> str:
    """Return both tables as Markdown."""
    engines = _scheduling()
    lines = _table(
        ["", *(engine.title for engine in engines)],
        (
            [f"`{FEATURES[feature]}`" if feature != "windows" else FEATURES[feature]]
            + [_cell(engine, feature) for engine in engines]
            for feature in _ENGINE_FEATURES
        ),
    )
    lines += ["", "Whatever the engine, these are refused together:", ""]
    lines += _table(
        ["", "with", "why"], ([FEATURES[one], FEATURES[other], reason] for one, other, reason, _ in TOGETHER)
    )
    kept = "; ".join(f"{FEATURES[feature]} ({reason})" for feature, reason in WINDOWS_KEPT_WHOLE.items())
    lines += ["", f"Window layers keep the KV of all tokens, which the report says, with {kept}."]
    return "\n".join(lines)


def _cell(engine: Engine, feature: Feature) -> str:
    reason = engine_refusal(engine, feature)
    return "yes" if reason is None else f"no: {reason}"


def _table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def with_tables(page: str) -> str:
    """Return a page with the tables between its marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_tables(file.read_text(encoding="utf-8")), encoding="utf-8")
