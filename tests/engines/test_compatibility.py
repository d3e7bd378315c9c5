"""The table of what combines with what: printed in the docs, and obeyed by the builder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simserve.deploy.build import build
from simserve.engines.compatibility import FEATURES, TOGETHER, engine_refusal, with_tables
from simserve.engines.presets import ENGINES
from simserve.errors import ScenarioError
from simserve.scenario import Scenario

DOCS = Path(__file__).parents[2] / "docs" / "engines.md"
SPECULATION = {"method": "ngram", "num_speculative_tokens": 2, "acceptance": 0.5}
TIERS = [{"kind": "cpu", "capacity_gib": 1}]


def test_the_docs_have_the_tables_as_they_are() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert page == with_tables(page)


def test_every_pair_is_of_known_features_and_stands_once() -> None:
    pairs = [frozenset(refusal[:2]) for refusal in TOGETHER]
    assert len(set(pairs)) == len(pairs)
    assert {feature for pair in pairs for feature in pair} <= set(FEATURES)


def build_with(name: str, role: str = "mixed", **pool: Any) -> None:
    pools = [{"name": "a", "gpu": "h100_sxm", "role": role, **pool}]
    if role != "mixed":
        other = {"prefill": "decode", "decode": "prefill"}[role]
        pools.append({"name": "b", "gpu": "h100_sxm", "role": other})
    build(
        Scenario.model_validate(
            {
                "name": "combinations",
                "model": "llama-3.1-8b",
                "engine": name,
                "pools": pools,
                "workload": {
                    "synthetic": {
                        "requests": 1,
                        "arrivals": {"kind": "poisson", "rate_per_s": 1},
                        "prompt_tokens": {"kind": "constant", "value": 20},
                        "output_tokens": {"kind": "constant", "value": 2},
                    }
                },
            }
        )
    )


ASKED: dict[str, dict[str, Any]] = {
    "pp": {"pp": 2},
    "kv_tiers": {"kv_tiers": TIERS},
    "speculation": {"speculation": SPECULATION},
    "prefill": {"role": "prefill"},
}
BLOCKS_OF_TIERS = {"sglang": {"engine": {"block_size": 64}}}


@pytest.mark.parametrize("feature", ASKED)
@pytest.mark.parametrize("name", ["vllm", "sglang", "orca", "static"])
def test_an_engine_has_a_feature_or_refuses_it_with_the_reason_of_the_table(name: str, feature: Any) -> None:
    reason = engine_refusal(ENGINES[name], feature)
    options = ASKED[feature] | (BLOCKS_OF_TIERS.get(name, {}) if feature == "kv_tiers" else {})
    if reason is None:
        build_with(name, **options)
        return
    with pytest.raises(ScenarioError) as error:
        build_with(name, **options)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pp": 2, "kv_tiers": TIERS}, "pp = 2 cannot be combined with kv_tiers"),
        ({"pp": 2, "speculation": SPECULATION}, "pp = 2 cannot be combined with speculation"),
        ({"kv_tiers": TIERS, "speculation": SPECULATION}, "kv_tiers cannot be combined with speculation"),
        ({"role": "decode", "pp": 2}, "pp = 2 cannot be combined with role: decode"),
        ({"role": "decode", "kv_tiers": TIERS}, "kv_tiers cannot be combined with role: decode"),
    ],
)
def test_two_features_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        build_with("vllm", **options)
