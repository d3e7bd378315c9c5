"""The synthetic workloads that ship in traces/, matched to published statistics of public traces.

The points are quantiles of the Azure 2023 traces (conversation and code, CC-BY 4.0, described in Splitwise,
ISCA 2024) and of Mooncake's conversation trace (Apache-2.0, FAST 2025). No row of them is used. The seeds are
those, of a hundred or so tried, whose draws of a few thousand requests come closest to the targets.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.errors import ScenarioError, nearest
from simserve.workload.arrivals import Bursts, Gamma
from simserve.workload.distributions import Quantiles
from simserve.workload.synthetic import PrefixGroup, Revisits, SharedPrefixes, SyntheticSpec

_CHANCES = (
    *(0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    *(0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1),
)
"""Probabilities of the quantile tables below."""


@dataclass(frozen=True)
class Preset:
    """A specification, the seed and format that it ships with, and what it imitates."""

    spec: SyntheticSpec
    seed: int
    file: str
    format: str
    imitates: str


def preset(name: str) -> Preset:
    """Return a preset by name; raises `ScenarioError` naming those that exist."""
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise ScenarioError(f"unknown preset {name!r}{nearest(name, PRESETS)}; known: {known}")
    return PRESETS[name]


def _table(*values: float) -> Quantiles:
    return Quantiles(kind="quantiles", points=tuple(zip(_CHANCES, values, strict=True)))


_CHAT = SyntheticSpec(
    requests=5000,
    # Load drifts over minutes: a lively state a third of the time.
    arrivals=Bursts(kind="bursts", rate_per_s=4.6, burst_rate_per_s=7.8, mean_on_s=200, mean_off_s=400),
    prompt_tokens=_table(
        *(2, 29, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315),
        *(1876, 2734, 4076, 4083, 4090, 4098, 4142, 4831, 6179, 14050),
    ),
    output_tokens=_table(
        *(7, 16, 41, 54, 77, 91, 103, 129, 177, 384, 400),
        *(411, 424, 433, 451, 509, 540, 601, 643, 954, 1000),
    ),
)

_CODE = SyntheticSpec(
    requests=8819,
    # Silence three quarters of the time; within a burst the gaps are uneven too.
    arrivals=Bursts(kind="bursts", rate_per_s=0, burst_rate_per_s=11, mean_on_s=14, mean_off_s=45, cv=2.5),
    prompt_tokens=_table(
        *(3, 17, 75, 147, 385, 770, 1075, 1469, 1909, 2433, 3192),
        *(3920, 5187, 6193, 7303, 7435, 7436, 7436, 7436, 7437, 7437),
    ),
    output_tokens=_table(
        *(6, 6, 6, 7, 8, 9, 11, 13, 16, 20, 29),
        *(39, 55, 72, 90, 128, 170, 251, 359, 825, 1899),
    ),
)

_LONG_CONTEXT = SyntheticSpec(
    requests=4000,
    arrivals=Gamma(kind="gamma", rate_per_s=3.4, cv=1.5),
    prompt_tokens=_table(
        *(891, 894, 901, 964, 1662, 3263, 4993, 6909, 9570, 13196, 17869),
        *(21464, 27367, 32398, 39550, 52215, 66448, 85400, 100810, 121300, 126195),
    ),
    output_tokens=_table(
        *(1, 3, 10, 24, 100, 213, 291, 350, 399, 447, 504),
        *(543, 597, 648, 698, 800, 891, 1118, 1567, 2000, 2000),
    ),
    # Every prompt begins with the same system prompt of one block.
    shared_prefixes=SharedPrefixes(groups=(PrefixGroup(tokens=512),), counted="within"),
    revisits=Revisits(
        share=0.55,
        fraction=Quantiles(
            kind="quantiles",
            points=((0, 0.015), (0.05, 0.15), (0.1, 0.29), (0.25, 0.59), (0.5, 0.85), (0.75, 0.95), (1, 1)),
        ),
        age_s=Quantiles(
            kind="quantiles",
            points=(
                (0, 0),
                (0.05, 30),
                (0.1, 42),
                (0.25, 66),
                (0.5, 123),
                (0.75, 264),
                (0.95, 615),
                (1, 3030),
            ),
        ),
    ),
    block_tokens=512,
)

PRESETS = {
    "chat": Preset(_CHAT, 157, "chat.csv.gz", "azure", "Azure 2023 conversation"),
    "code": Preset(_CODE, 44, "code.csv.gz", "azure", "Azure 2023 code"),
    "long-context": Preset(
        _LONG_CONTEXT, 47, "long_context.jsonl.gz", "mooncake", "Mooncake FAST'25 conversation"
    ),
}
