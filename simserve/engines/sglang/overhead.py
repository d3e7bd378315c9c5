"""What SGLang itself costs per step beside its kernels, and the batch sizes of its CUDA graphs."""

from __future__ import annotations

from simserve.latency.overhead import CLIENT_ASSUMED, CPU_ASSUMED, SAVED_ASSUMED, EngineOverhead


def capture_sizes(largest: int = 256) -> tuple[int, ...]:
    """Return the batch sizes with a CUDA graph, up to `largest` sequences."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), *range(512, largest + 1, 32)]
    return tuple(size for size in sizes if size <= largest)


OVERHEAD = EngineOverhead(
    "sglang",
    step_us=126.0,
    sequence_us=4.4,
    request_us=0.0,
    overlapped=True,
    gap_us=0.0,
    capture_sizes=capture_sizes(),
    launch_layer_us=32.0,
    kernels="sglang",
    two_batch="sglang",
    built_in=True,
    provenance={
        "step_us": CPU_ASSUMED,
        "sequence_us": CPU_ASSUMED,
        "request_us": "0: requests are tokenised in another process",
        "visits_all": "assumption: a microbatch costs its own sequences only",
        "overlapped": "SGLang 0.5.23 default: overlap scheduler",
        "gap_us": "0: assumed hidden by the overlap scheduler",
        "saved_us": SAVED_ASSUMED,
        "capture_sizes": "SGLang 0.5.23 default on 80-141 GB cards: 1, 2, 4, 8, 12, 16..256 by 8",
        "launch_layer_us": CPU_ASSUMED,
        "client_us": CLIENT_ASSUMED,
    },
)
