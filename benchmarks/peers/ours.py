"""simserve's side, and the child process that replays one job: `python -m benchmarks.peers.ours`.

Llama-3.1-8B on h100_sxm under vLLM 0.33's policy, with what the peer does where it shapes batches: its
limits, and no step planned ahead.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.sample import Sample, run_child

_ROOT = Path(__file__).resolve().parents[2]

OPTIONS = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "async_scheduling": False}


def replay(job: dict[str, Any]) -> Sample:
    """Replay a job (trace, workers, concurrency, prefix_caching) in a fresh process."""
    return run_child([sys.executable, "-m", "benchmarks.peers.ours"], job, _ROOT)


def _replay_here(job: dict[str, Any]) -> dict[str, Any]:
    from simserve.deploy.build import build
    from simserve.scenario import Scenario

    workload: dict[str, Any] = {"trace": job["trace"]}
    if job["concurrency"]:
        workload["closed_loop"] = {"concurrency": job["concurrency"]}
    scenario = Scenario.model_validate(
        {
            "name": "peers",
            "model": "llama-3.1-8b",
            "engine": {"preset": "vllm-0.33", "enable_prefix_caching": job["prefix_caching"], **OPTIONS},
            "workload": workload,
            "pools": [{"name": "h100", "gpu": "h100_sxm", "replicas": job["workers"]}],
            "router": {"kind": "round_robin"},
        }
    )
    deployment = build(scenario)
    before_s = time.process_time()
    result = deployment.simulate()
    cpu_s = time.process_time() - before_s
    several = result.output_tokens > 1
    decode_ns = (result.last_token_ns - result.first_token_ns)[several]
    return {
        "cpu_s": cpu_s,
        "apart_s": before_s,
        "completed": len(result.output_tokens),
        "output_tokens": int(result.output_tokens.sum()),
        "tpot_ms": float((decode_ns / (result.output_tokens[several] - 1)).mean()) / 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(_replay_here(json.load(sys.stdin))))
