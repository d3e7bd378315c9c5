"""Ids of its own for every prompt tell SGLang nothing new: a request that comes back knows itself anyway."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from simserve.engines.sglang import SglangParams, SglangPolicy
from simserve.engines.sglang.sequence import trace_content
from simserve.router.base import ROUTERS, RouterParams
from simserve.sim import ReplicaSpec, simulate
from tests.laws.checkers import results_agree
from tests.laws.world import MAX_MODEL_LEN, traces
from tests.sim.plain_latency import PlainLatency

IDS_OF = 8


def served(trace, page, options):
    tokens = MAX_MODEL_LEN + 4 * page + (-MAX_MODEL_LEN) % page
    policy = SglangPolicy(
        SglangParams(chunked_prefill_size=16, **options),
        kv_blocks=tokens // page,
        block_size=page,
        max_model_len=MAX_MODEL_LEN,
        content=trace_content(trace, page),
    )
    spec = ReplicaSpec("r", "p", 1, policy, PlainLatency(), tokens // page, page, MAX_MODEL_LEN, "as set")
    return simulate(trace, [spec], ROUTERS.get("round_robin")(RouterParams(), seed=0))


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize(
    "options",
    [
        {"schedule_conservativeness": 0.0},
        {"schedule_conservativeness": 0.0, "disable_overlap_schedule": True},
        # At 0 decodes can take the memory of a prompt in progress; then the engine itself stops.
        {"schedule_conservativeness": 1.0, "enable_mixed_chunk": True},
        {"schedule_conservativeness": 0.0, "enable_priority_scheduling": True},
        {"schedule_conservativeness": 0.0, "schedule_policy": "lpm"},
    ],
)
@settings(max_examples=25, deadline=None)
@given(trace=traces())
def test_ids_of_its_own(page, options, trace):
    counts = -(-trace.prompt_tokens // IDS_OF)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    told = replace(trace, block_ids=np.arange(offsets[-1]), block_offsets=offsets, block_tokens=IDS_OF)
    results_agree(served(trace, page, options), served(told, page, options))
