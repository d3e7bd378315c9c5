"""What studies of disaggregation share: it does not pay for short prompts; the ratio matters for long ones.

"Beyond the Buzz" (arXiv 2506.05508) finds it most effective for prefill-heavy traffic.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simserve.deploy.build import build
from simserve.scenario import load_scenario

PAGE = Path(__file__).parents[2] / "docs" / "pd-split.md"
SPLITS = ("2p6d", "4p4d", "6p2d")
WORKLOAD = (
    "workload={{synthetic: {{requests: 400, arrivals: {{kind: poisson, rate_per_s: {rate}}}, prompt_tokens: "
    "{{kind: constant, value: {prompt}}}, output_tokens: {{kind: constant, value: 256}}}}}}"
)


def goodput(prompt: int, rate: int, ttft_ms: int) -> dict[str, float]:
    """Good requests/s of three splits of eight GPUs, and without one, under the same limits on TPOT."""
    options = [WORKLOAD.format(rate=rate, prompt=prompt), f"slo={{ttft_ms: {ttft_ms}, tpot_ms: 12}}"]
    loaded = load_scenario("scenarios/pd_ratio.yaml", options)
    runs = {"4p4d": loaded} | loaded.variants
    found = {}
    for name in (*SPLITS, "aggregated"):
        deployment = build(runs[name])
        slo = deployment.summarize(deployment.simulate()).whole.slo
        assert slo is not None
        found[name] = slo.goodput_requests_per_s or 0.0
    return found


@pytest.fixture(scope="module")
def short() -> dict[str, float]:
    return goodput(256, 160, 400)


@pytest.fixture(scope="module")
def long() -> dict[str, float]:
    return goodput(4096, 30, 1000)


@pytest.mark.parametrize(("row", "name"), [("256, 160", "short"), ("4,096, 30", "long")])
def test_the_page_shows_these_figures(row: str, name: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(name)
    (cells,) = re.findall(rf"^\| {re.escape(row)} \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    shown = [cell.strip(" *") for cell in cells.split("|")]
    assert shown[:4] == [f"{found[one]:.1f}" for one in (*SPLITS, "aggregated")]


def test_no_split_pays_for_short_prompts(short: dict[str, float]) -> None:
    assert max(short[name] for name in SPLITS) < short["aggregated"]


def test_the_right_split_pays_for_long_prompts(long: dict[str, float]) -> None:
    assert long["4p4d"] > 1.5 * long["aggregated"]


def test_the_ratio_matters_more_for_long_prompts(short: dict[str, float], long: dict[str, float]) -> None:
    spread = lambda found: max(found[n] for n in SPLITS) / min(found[n] for n in SPLITS)  # noqa: E731
    assert spread(short) < 1.25
    assert spread(long) > 4
