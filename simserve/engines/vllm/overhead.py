"""What vLLM itself costs per step beside its kernels, and the batch sizes of its CUDA graphs."""

from __future__ import annotations

from simserve.latency.overhead import CLIENT_ASSUMED, CPU_ASSUMED, SAVED_ASSUMED, EngineOverhead


def capture_sizes(largest: int = 512) -> tuple[int, ...]:
    """Return the batch sizes with a CUDA graph, up to `largest` sequences."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


OVERHEAD = EngineOverhead(
    "vllm",
    step_us=126.0,
    sequence_us=4.4,
    request_us=0.0,
    overlapped=True,
    gap_us=0.0,
    capture_sizes=capture_sizes(),
    launch_layer_us=32.0,
    two_batch="vllm",
    built_in=True,
    provenance={
        "step_us": CPU_ASSUMED,
        "sequence_us": CPU_ASSUMED,
        "request_us": "0: requests are tokenised in another process",
        "visits_all": "assumption: a microbatch costs its own sequences only",
        "overlapped": "vLLM 0.33.0 default: asynchronous scheduling",
        "gap_us": "0: assumed hidden by asynchronous scheduling",
        "saved_us": SAVED_ASSUMED,
        "capture_sizes": "vLLM 0.33.0 default: 1, 2, 4, 8..248 by 8, 256..512 by 16",
        "launch_layer_us": CPU_ASSUMED,
        "client_us": CLIENT_ASSUMED,
    },
)
