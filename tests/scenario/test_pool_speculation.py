"""The key `speculation` of a pool: what it means, what it takes, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from simserve.deploy.build import build, run_scenario
from simserve.errors import ScenarioError
from simserve.model import load_model
from simserve.scenario import Scenario
from simserve.scenario.split_spec import SpeculationSpec, chance_for


def scenario(speculation: dict[str, Any] | None, **changes: Any) -> Scenario:
    pool = {"gpu": "h100_sxm", "max_model_len": 8192, **changes.pop("pool", {})}
    plain = {
        "name": "Drafts",
        "model": "llama-3.1-8b",
        "engine": "vllm-0.33",
        "workload": {
            "synthetic": {
                "requests": 40,
                "arrivals": {"kind": "poisson", "rate_per_s": 4},
                "prompt_tokens": {"kind": "constant", "value": 300},
                "output_tokens": {"kind": "uniform", "min": 50, "max": 150},
            }
        },
        "pools": [pool | ({"speculation": speculation} if speculation else {})],
    }
    return Scenario.model_validate(plain | changes)


EAGLE = {"method": "eagle", "num_speculative_tokens": 3, "acceptance": [0.8, 0.6, 0.4]}


def test_a_mean_length_becomes_one_chance_for_all_drafts() -> None:
    """1 + p + p^2 + p^3 by hand: p = 0.5 makes 1.875; a list or a number is taken as it is."""
    assert chance_for(1.875, 3) == pytest.approx(0.5, abs=1e-9)
    lookups = {"method": "ngram", "num_speculative_tokens": 3}
    spec = SpeculationSpec.model_validate({**lookups, "acceptance_length": 1.875})
    assert spec.chances == pytest.approx((0.5, 0.5, 0.5))
    assert spec.drawn(0).mean_tokens == pytest.approx(1.875)
    assert SpeculationSpec.model_validate({**lookups, "acceptance": 0.3}).chances == (0.3, 0.3, 0.3)
    assert chance_for(1.0, 4) == pytest.approx(0, abs=1e-9)
    assert chance_for(5.0, 4) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"acceptance": None}, "exactly one of acceptance and acceptance_length, found none"),
        ({"acceptance_length": 2.0}, "found both"),
        ({"acceptance": [0.8, 0.6]}, "num_speculative_tokens = 3 of them"),
        ({"acceptance": None, "acceptance_length": 4.5}, r"at most num_speculative_tokens \+ 1 = 4"),
        ({"model": "llama-3.1-8b"}, "belongs to method draft_model"),
        ({"method": "draft_model"}, "method = draft_model needs a model"),
        ({"method": "medusa"}, "mtp"),
        ({"acceptance": 1.2}, "less than or equal to 1"),
    ],
)
def test_what_contradicts_itself_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SpeculationSpec.model_validate({**EAGLE, **changes})


@pytest.mark.parametrize(
    ("speculation", "changes", "words"),
    [
        ({**EAGLE, "method": "mtp"}, {}, "llama-3.1-8b ships no prediction layer"),
        (EAGLE, {"engine": "sglang-0.5.23"}, "is not possible with sglang-0.5.23: its verification windows"),
        (EAGLE, {"pool": {"pp": 2}}, "pp = 2 cannot be combined with speculation"),
        (
            {**EAGLE, "method": "draft_model", "model": "qwen3-8b"},
            {},
            "vocabulary of 151,936, not 128,256",
        ),
        (EAGLE, {"model": "gpt-oss-120b", "pool": {"tp": 4}}, "disable_hybrid_kv_cache_manager: true"),
    ],
)
def test_what_does_not_go_together_is_refused(
    speculation: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ScenarioError, match=words):
        build(scenario(speculation, **changes))


def test_the_ledger_counts_the_draft() -> None:
    """EAGLE for Llama-3.1-8B: one layer of 218.1 M parameters and a projection of 2 x 4096^2, at 2 bytes."""
    plain, drafted = (build(scenario(one)).pools[0] for one in (None, EAGLE))
    layer = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336
    weights = drafted.ledger.line("draft weights").bytes
    assert weights == pytest.approx(2 * (layer + 2 * 4096**2), rel=1e-3)
    assert drafted.ledger.kv_bytes_per_token == plain.ledger.kv_bytes_per_token * 33 / 32
    assert drafted.ledger.kv_bytes == plain.ledger.kv_bytes - weights


def test_a_draft_model_brings_all_its_weights_and_n_grams_nothing() -> None:
    small = {**EAGLE, "method": "draft_model", "model": "llama-3.1-8b"}
    pool = build(scenario(small, model="llama-3.1-70b", pool={"tp": 4})).pools[0]
    assert pool.ledger.line("draft weights").bytes == pytest.approx(8.03e9 * 2 / 4, rel=0.01)
    ngram = build(scenario({**EAGLE, "method": "ngram"})).pools[0]
    assert ngram.ledger == build(scenario(None)).pools[0].ledger
    assert load_model("llama-3.1-8b").num_layers == 32


def test_speculation_halves_the_time_per_token_at_small_batches() -> None:
    plain, drafted = (run_scenario(scenario(one)) for one in (None, EAGLE))
    replica = drafted.replicas[0]
    assert replica.drafting is not None
    assert replica.drafting.verifications > 1000
    length = 1 + replica.drafting.accepted_tokens / replica.drafting.verifications
    assert length == pytest.approx(1 + 0.8 + 0.48 + 0.192, rel=0.05)
    per_token = [np.mean((r.last_token_ns - r.first_token_ns) / r.output_tokens) for r in (plain, drafted)]
    assert 0.4 < per_token[1] / per_token[0] < 0.65


def test_the_decoding_side_of_a_split_speculates() -> None:
    pools = [
        {"name": "p", "role": "prefill", "gpu": "h100_sxm"},
        {"name": "d", "role": "decode", "gpu": "h100_sxm", "speculation": EAGLE},
    ]
    result = run_scenario(scenario(None, pools=pools, transfer={"link": "rdma_400g"}))
    prefill, decode = result.replicas
    assert prefill.drafting is None
    assert decode.drafting is not None
    assert result.verifications is not None
    assert decode.drafting.verifications == int(np.maximum(result.verifications, 0).sum())
    wrong = [pools[0] | {"speculation": EAGLE}, pools[1]]
    with pytest.raises(ScenarioError, match="speculate on the decode pool"):
        build(scenario(None, pools=wrong, transfer={"link": "rdma_400g"}))


def test_without_drafts_nothing_changes() -> None:
    """No column, no totals, and the policy of the engine as it is."""
    result = run_scenario(scenario(None))
    assert result.verifications is None
    assert result.replicas[0].drafting is None
