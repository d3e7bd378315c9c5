"""Settings: SGLang's names and defaults; what is not modelled is refused by name."""

import pytest
from pydantic import ValidationError

from simserve.engines.base import POLICIES
from simserve.engines.sglang import SglangParams, SglangPolicy
from simserve.engines.sglang.running import NewTokenRatio
from simserve.errors import ScenarioError


def test_defaults_are_the_versions_own():
    params = SglangParams()
    assert (params.schedule_policy, params.radix_eviction_policy) == ("fcfs", "lru")
    assert (params.max_prefill_tokens, params.schedule_conservativeness) == (16384, 1.0)
    assert not params.enable_mixed_chunk
    assert not params.disable_overlap_schedule


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"enable_hierarchical_cache": True}, "enable_hierarchical_cache"),
        ({"speculative_algorithm": "EAGLE"}, "speculative_algorithm"),
        ({"prefill_decode_interval": 2}, "prefill_decode_interval"),
        ({"schedule_policy": "routing-key"}, "'lpm', 'dfs-weight', 'lof' or 'random'"),
        ({"radix_eviction_policy": "tlru"}, "'lru'"),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size is 0"),
        ({"enable_priority_scheduling": True, "schedule_policy": "lpm"}, "fcfs or lof, not lpm"),
    ],
)
def test_what_is_not_modelled_is_refused(options, named):
    with pytest.raises(ValidationError, match=named):
        SglangParams(**options)


def test_pipeline_parallelism_is_refused():
    assert POLICIES.get("sglang") is SglangPolicy
    with pytest.raises(ScenarioError, match="pp = 2"):
        SglangPolicy(SglangParams(), kv_blocks=10, block_size=1, max_model_len=10, lanes=2)


def test_the_ratio_falls_to_its_floor_in_six_hundred_steps():
    ratio = NewTokenRatio(1.0)
    assert ratio.value == 0.7
    ratio.decay(1)
    assert ratio.value == pytest.approx(0.7 - 0.602 / 600)
    ratio.decay(598)
    assert ratio.value > 0.098
    ratio.decay(2)
    assert ratio.value == pytest.approx(0.098)
    ratio.reset_after_retraction(outputs=50, max_new_tokens=999, remaining=5)
    assert ratio.value == pytest.approx(0.15)
