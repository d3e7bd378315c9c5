"""What ranks that step together cost to simulate: python -m benchmarks.ranks

DeepSeek-V3 on 36 and 144 H100, 128 sequences on each, EPLB with 32 redundant experts. To hold: 144 ranks and
20,000 requests in under 60 s of CPU, and a cost per request that does not grow with the ranks.
"""

from __future__ import annotations

import time

from simserve.deploy.build import build
from simserve.scenario.spec import Scenario

SEQUENCES = 128


def simulate(ranks: int, requests: int) -> tuple[float, int]:
    """Return the CPU seconds of a run without its building, and the steps of the group."""
    pool = {
        "name": "decode",
        "gpu": "h100_sxm",
        "dp": ranks,
        "ep": ranks,
        "weights_dtype": "fp8_block",
        "engine": {"max_num_seqs": SEQUENCES},
        "placement": {"kind": "eplb", "redundant_experts": 32},
    }
    workload = {
        "synthetic": {
            "requests": requests,
            "arrivals": {"kind": "poisson", "rate_per_s": 2000.0},
            "prompt_tokens": {"kind": "lognormal", "p50": 900, "p90": 1700},
            "output_tokens": {"kind": "lognormal", "p50": 270, "p90": 500},
        },
        "closed_loop": {"concurrency": ranks * SEQUENCES},
    }
    scenario = {"name": "ranks", "model": "deepseek-v3", "engine": "vllm-0.33", "pools": [pool]}
    made = Scenario.model_validate({**scenario, "workload": workload, "router": "least_outstanding_tokens"})
    deployment = build(made)
    start = time.process_time()
    result = deployment.simulate()
    return time.process_time() - start, result.groups[0].steps


def main() -> None:
    """Print CPU time by ranks."""
    for ranks, requests in ((36, 5_000), (144, 20_000)):
        seconds, steps = simulate(ranks, requests)
        each = f"{1e6 * seconds / requests:.0f} us/request"
        print(f"{ranks} ranks, {requests:,} requests: {seconds:.1f} s CPU, {steps:,} steps, {each}")


if __name__ == "__main__":
    main()
