"""Why requests wait: for each reason and engine a deployment in which it is planted, against their stamps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.core import Result, WaitReason
from simserve.deploy.build import build
from simserve.scenario import Scenario

SMALL_KV = {"gpu_memory_utilization": 0.24}
"""Room for some 60 requests of vLLM or SGLang beside the weights."""
NO_EVICT = {"gpu_memory_utilization": 0.3585, "max_model_len": 512}
"""The same for the engines that reserve a whole sequence, whose activations take more."""
SHORT = {"max_model_len": 512}
SLOW = {"link": "rdma_100g", "links": 1, "gb_s": 0.5}
FAST = {"link": "nvlink"}


def simulated(engine: dict[str, Any], pools: list[dict[str, Any]], **load: Any) -> Result:
    """A run of requests of one length."""
    load = {"requests": 300, "rate": 100, "prompt": 300, "answer": 100} | load
    plain = {
        "name": "planted",
        "model": "llama-3.1-8b",
        "engine": engine,
        "workload": {
            "synthetic": {
                "requests": load["requests"],
                "arrivals": {"kind": "poisson", "rate_per_s": load["rate"]},
                "prompt_tokens": {"kind": "constant", "value": load["prompt"]},
                "output_tokens": {"kind": "constant", "value": load["answer"]},
            }
        },
        "pools": pools,
        "seed": 3,
    }
    plain |= {"transfer": load["transfer"]} if "transfer" in load else {}
    return build(Scenario.model_validate(plain)).simulate()


def covered(start_ns: np.ndarray, end_ns: np.ndarray) -> int:
    """The length of the union of intervals: the time in which at least one request waited."""
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], end_ns[order]
    before = np.concatenate([start_ns[:1], np.maximum.accumulate(end_ns)[:-1]])
    return int(np.maximum(end_ns - np.maximum(start_ns, before), 0).sum())


def one(engine: str, pool: dict[str, Any] | None = None, load: dict[str, Any] | None = None, **options: Any):
    return {"preset": engine, **options}, [{"gpu": "h100_sxm", **(pool or {})}], load or {}


LONG = {"prompt": 2000}
RARE = {"rate": 5}
PLANTED = [
    ("STEP", one("vllm-0.33", load=RARE)),
    ("BLOCKS", one("vllm-0.33", SMALL_KV)),
    ("SLOTS", one("vllm-0.33", max_num_seqs=8)),
    ("TOKENS", one("vllm-0.33", load=LONG, max_num_batched_tokens=512)),
    ("PACE", one("vllm-0.33", load=RARE, prefill_schedule_interval=64)),
    ("STEP", one("sglang-0.5.23", load=RARE)),
    ("BLOCKS", one("sglang-0.5.23", SMALL_KV)),
    ("SLOTS", one("sglang-0.5.23", max_running_requests=8)),
    ("TOKENS", one("sglang-0.5.23", load=LONG, chunked_prefill_size=512)),
    # TensorRT-LLM's guaranteed no-evict: the blocks of a whole answer are reserved at admission
    ("STEP", one("orca", SHORT, RARE)),
    ("BLOCKS", one("orca", NO_EVICT, {"rate": 400, "requests": 600})),
    ("SLOTS", one("orca", SHORT, max_num_seqs=8)),
    # and its default, whose scheduler is close to vLLM's with whole prompts reserved
    ("BLOCKS", one("vllm-0.33", SMALL_KV, scheduler_reserve_full_isl=True)),
    ("SLOTS", one("static", SHORT, batch_size=8)),
    ("BLOCKS", one("static", NO_EVICT, {"requests": 600}, batch_size=256, timeout_ms=3000)),
    ("PACE", one("static", SHORT, {"rate": 1, "requests": 60}, batch_size=8, timeout_ms=5000)),
    ("BATCH", one("static", SHORT, {"rate": 20}, batch_size=64, timeout_ms=1)),
]


@pytest.mark.parametrize(
    ("reason", "deployment"), PLANTED, ids=[f"{case[0]['preset']}-{reason}" for reason, case in PLANTED]
)
def test_the_planted_reason_has_the_largest_share_of_the_waiting(reason: str, deployment) -> None:
    engine, pools, load = deployment
    result = simulated(engine, pools, **load)
    (replica,) = result.replicas
    assert max(WaitReason, key=lambda found: replica.waited_ns[found]).name == reason
    assert sum(replica.waited_ns) == covered(result.arrival_ns, result.first_scheduled_ns)
    line = replica.timeline
    assert line.waiting.min() >= -1e-9
    queue_ns = float((line.waiting * (line.end_ns - line.start_ns)).sum())  # Little
    waits_ns = result.first_scheduled_ns - result.arrival_ns + result.requeued_ns
    assert queue_ns == pytest.approx(float(waits_ns.sum()))


def halves(prefill: dict[str, Any], decode: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": "p", "role": "prefill", "gpu": "h100_sxm", **prefill},
        {"name": "d", "role": "decode", "gpu": "h100_sxm", **decode},
    ]


@pytest.mark.parametrize(
    ("engine", "transfer", "reasons"),
    [
        # computed prompts fill the prefill side, because the link is slow or nobody has room to read them
        ("vllm-0.33", SLOW, ("TRANSFER", "TRANSFER")),
        ("vllm-0.33", FAST, ("DECODE", "BLOCKS")),
        ("sglang-0.5.23", SLOW, ("TRANSFER", "TRANSFER")),
        # SGLang computes no prompt before the decoding side has room: all wait there
        ("sglang-0.5.23", FAST, ("STEP", "BLOCKS")),
    ],
)
def test_a_split_waits_for_its_link_or_for_room_to_decode(engine, transfer, reasons) -> None:
    slow = transfer is SLOW
    pools = halves(SMALL_KV, {} if slow else SMALL_KV)
    shape = {"prompt": 1000} if slow else {"answer": 400}
    result = simulated({"preset": engine}, pools, transfer=transfer, **shape)
    prefill, decode = result.replicas
    assert max(replica.timeline.waiting.max() for replica in result.replicas) <= 300
    for replica, reason in zip((prefill, decode), reasons, strict=True):
        assert max(WaitReason, key=lambda found: replica.waited_ns[found]).name == reason
    assert result.split is not None
    columns, room_first = result.split.columns, result.split.room_first
    known_ns = result.arrival_ns if room_first else columns.prefill_end_ns
    again = bool(result.preemptions.any())  # whoever loses its blocks waits again
    waited_ns = covered(known_ns, columns.decode_scheduled_ns)
    assert sum(decode.waited_ns) == waited_ns or (again and sum(decode.waited_ns) > waited_ns)
    known_ns = columns.room_ns if room_first else result.arrival_ns
    waited_ns = covered(known_ns, columns.prefill_scheduled_ns)
    assert sum(prefill.waited_ns) == waited_ns or (not slow and sum(prefill.waited_ns) > waited_ns)


def test_nobody_waits_who_comes_alone() -> None:
    result = simulated({"preset": "vllm-0.33"}, [{"gpu": "h100_sxm"}], rate=0.1, requests=5)
    assert sum(result.replicas[0].waited_ns) == 0
    assert covered(result.arrival_ns, result.first_scheduled_ns) == 0
