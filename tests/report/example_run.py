"""A realistic result for looking at the report: a queue drawn with numpy, no engine behind it.

`python tests/report/example_run.py FOLDER` writes it, with its report.
"""

from __future__ import annotations

import dataclasses
import heapq
import sys
from pathlib import Path
from typing import Any

import numpy as np

from simserve.core import PoolFacts, ReplicaResult, Result, Status, Timeline, TokenGaps
from simserve.metrics import Slo, summarize, write_results
from simserve.metrics.columns import totals

S = 1_000_000_000
SLOTS = 30
BLOCK = 16
KV_BLOCKS = 28_000
SLO = Slo(ttft_ms=1000, tpot_ms=50)


def example_result(n: int = 20_000, rate: float = 10.5, seed: int = 1) -> Result:
    """Two replicas of `SLOTS` slots each; every request holds one slot while it runs."""
    rng = np.random.default_rng(seed)
    wave = 1 + 0.25 * np.sin(np.linspace(0, 9, n))
    arrival = np.cumsum(rng.exponential(S / rate, n) / wave).astype(np.int64)
    prompt = np.clip(rng.lognormal(6.6, 1.0, n), 5, 16_000).astype(np.int64)
    output = np.clip(rng.lognormal(5.0, 0.9, n), 0, 4_000).astype(np.int64)
    tpot = rng.gamma(60, 20e6 / 60, n)
    prefill = (prompt * 45_000 + rng.gamma(4, 8e6, n)).astype(np.int64)
    decode = (tpot * np.maximum(output - 1, 0)).astype(np.int64)
    replica = np.arange(n) % 2
    started = _starts(arrival, prefill + decode, replica)
    first = started + prefill
    last = first + decode
    refused = rng.random(n) < 0.001
    status = np.where(refused, int(Status.REFUSED), int(Status.COMPLETED)).astype(np.int64)
    absent = lambda values: np.where(refused, -1, values)  # noqa: E731
    preempted = (rng.random(n) < 0.01) & ~refused
    gaps = _gaps(rng, tpot[~refused], output[~refused])
    end = int(last[~refused].max())
    return Result(
        arrival_ns=arrival,
        arrival_order=np.arange(n),
        first_scheduled_ns=absent(started),
        first_token_ns=np.where(output == 0, -1, absent(first)),
        last_token_ns=absent(last),
        prompt_tokens=prompt,
        output_tokens=np.where(refused, 0, output),
        cached_tokens=np.where(refused, 0, prompt // 5),
        preemptions=preempted.astype(np.int64),
        requeued_ns=np.where(preempted, decode // 4, 0),
        replica=absent(replica),
        status=status,
        reason=np.where(refused, 0, -1),
        reasons=("prompt + output exceed max_model_len 16384 (KV cache of one replica)",),
        gaps=gaps,
        steady_gaps=gaps,
        steady_window=(n // 10, n - n // 10),
        replicas=tuple(
            _replica(i, (replica == i) & ~refused, arrival, started, first, last, prompt, output)
            for i in range(2)
        ),
        pools=(PoolFacts("main", 2, 1, "h100_sxm", 989e12, 3.35e12, 15.0e9, 524e3, 15.0e9, 131_072, 2.5),),
        provenance_ns={"measured": 0.21 * end, "interpolated": 0.74 * end, "extrapolated": 0.05 * end},
        end_ns=end,
        warnings=("5.0 % of simulated time lies outside the profiled range of attention_decode",),
    )


def manifest(name: str = "Chat on 2 H100, chunked prefill") -> dict[str, Any]:
    """What the command line records about a run."""
    return {
        "simserve_version": "0.1.0",
        "command": "simserve run scenarios/chat.yaml --seed 1",
        "seed": 1,
        "scenario_name": name,
        "trace": {
            "name": "chat.csv.gz",
            "format": "azure",
            "sha256": "3f" * 32,
            "assumptions": ["time stamps are UTC", "max_tokens is not in the trace: unlimited"],
            "changes": ["12 rows out of order were sorted"],
            "requests": 20_000,
        },
        "model": {"name": "llama-3.1-8b"},
        "pools": [
            {
                "name": "main",
                "gpu": "h100_sxm",
                "gpu_name": "H100 SXM",
                "replicas": 2,
                "tp": 1,
                "pp": 1,
                "engine": "vllm-0.33",
                "ledger": [
                    {"name": "weights", "bytes": 16_060_000_000, "basis": "bf16, tied head not shared"},
                    {"name": "activations", "bytes": 1_900_000_000, "basis": "8192 batched tokens"},
                    {"name": "CUDA graphs", "bytes": 1_100_000_000, "basis": "vLLM 0.33 default sizes"},
                    {"name": "KV cache", "bytes": 58_720_256_000, "basis": "28,000 blocks of 16 tokens"},
                    {"name": "left free", "bytes": 8_100_000_000, "basis": "gpu_memory_utilization 0.9"},
                ],
                "kv_blocks": KV_BLOCKS,
                "block_size": BLOCK,
                "max_model_len": 16_384,
                "limit_reason": "set by the scenario",
                "engine_options": {"max_num_seqs": SLOTS, "max_num_batched_tokens": 8192},
            }
        ],
        "router": "round_robin",
        "profiles": {"kernels_profile/h100_sxm/gemm.parquet": "ab" * 32},
        "assumptions": [
            "engine overhead 126 us per step + 4.4 us per sequence, not overlapped",
            "NVLink all-reduce not modelled (tp = 1)",
        ],
        "slo": SLO.limits(),
        "slo_asked": {"attainment": 0.99, "percentiles": {}},
        "fast_forward": True,
    }


def first_requests(result: Result, n: int) -> Result:
    """The first n requests of a result."""
    columns = {
        field.name: getattr(result, field.name)[:n]
        for field in dataclasses.fields(result)
        if isinstance(getattr(result, field.name), np.ndarray)
    }
    return dataclasses.replace(result, **columns, steady_window=(n // 10, n - n // 10))


def write_result(folder: Path, result: Result, name: str | None = None) -> Path:
    """Write a result folder (without report)."""
    facts = manifest(name) if name else manifest()
    return write_results(
        folder, result, summarize(result, SLO), "name: example\n", facts, slo=SLO, force=True
    )


def write_example(folder: Path, n: int = 20_000, rate: float = 10.5, name: str | None = None) -> Path:
    """Write the folder of an example of n requests."""
    return write_result(folder, example_result(n, rate), name)


def _starts(arrival: np.ndarray, service: np.ndarray, replica: np.ndarray) -> np.ndarray:
    slots = [[0] * SLOTS, [0] * SLOTS]
    started = np.empty_like(arrival)
    for i, (at, needs, where) in enumerate(
        zip(arrival.tolist(), service.tolist(), replica.tolist(), strict=True)
    ):
        started[i] = max(at, slots[where][0])
        heapq.heapreplace(slots[where], int(started[i]) + needs)
    return started


def _gaps(rng: np.random.Generator, tpot: np.ndarray, output: np.ndarray) -> TokenGaps:
    counts = np.maximum(output - 1, 0)
    edges = np.exp(np.arange(np.log(1e5), np.log(1e11), 0.004))
    stalls = rng.random(len(tpot)) < 0.05
    where = np.digitize(np.concatenate([tpot, tpot[stalls] * 8]), edges) - 1
    weight = np.concatenate([counts, counts[stalls] // 50])
    count = np.bincount(where, weights=weight, minlength=len(edges)).astype(np.int64)
    middle = edges * np.exp(0.002)
    keep = count > 0
    return TokenGaps(middle[keep], count[keep], int((middle * count).sum()))


def _level(start: np.ndarray, end: np.ndarray, amount: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Mean of how many (weighted) were between start and end, per bin."""
    return totals(start, end, amount * np.maximum(end - start, 1), edges) / np.diff(edges)


def _replica(index, mine, arrival, started, first, last, prompt, output) -> ReplicaResult:
    edges = np.linspace(0, int(last[mine].max()), 2_001).astype(np.int64).astype(float)
    width = np.diff(edges)
    a, s, f, e = arrival[mine], started[mine], first[mine], last[mine]
    one = np.ones(len(a))
    blocks = (prompt[mine] + output[mine] / 2) / BLOCK
    running = _level(s, e, one, edges)
    prefill = totals(s, f, prompt[mine].astype(float), edges)
    decode = totals(f, e, np.maximum(output[mine] - 1, 0).astype(float), edges)
    line = Timeline(
        edges[:-1].astype(np.int64),
        edges[1:].astype(np.int64),
        running,
        _level(a, s, one, edges),
        _level(s, e, blocks, edges),
        prefill,
        decode,
        np.where(running > 0, width / 21e6, 0),
    )
    steps = int(line.steps.sum())
    p, o = prompt[mine].astype(float), output[mine].astype(float)
    return ReplicaResult(
        name=f"main/{index}",
        pool="main",
        gpus=1,
        kv_blocks=KV_BLOCKS,
        block_size=BLOCK,
        steps=steps,
        wakeups=steps // 30,
        busy_ns=int(0.97 * edges[-1]),
        prefill_tokens=int(p.sum()),
        decode_tokens=int(o.sum()),
        recomputed_tokens=int(0.004 * p.sum()),
        preemptions=int(0.01 * len(p)),
        linear_tokens=int(p.sum() + o.sum()),
        prefill_pairs=int((p * p / 2).sum()),
        decode_pairs=int((o * (p + o / 2)).sum()),
        timeline=line,
    )


if __name__ == "__main__":
    from simserve.report import write_report

    print(write_report(write_example(Path(sys.argv[1]))))
