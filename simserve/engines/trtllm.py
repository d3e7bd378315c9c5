"""TensorRT-LLM: the host's work per step and its CUDA graphs. Its scheduler is not modelled."""

from __future__ import annotations

from simserve.engines.engine import Engine
from simserve.latency.overhead import CLIENT_ASSUMED, CPU_ASSUMED, SAVED_ASSUMED, EngineOverhead

OVERHEAD = EngineOverhead(
    "trtllm",
    step_us=126.0,
    sequence_us=29.0,
    request_us=0.0,
    visits_all=True,
    overlapped=True,
    gap_us=0.0,
    capture_sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192),
    launch_layer_us=32.0,
    kernels="trtllm",
    two_batch="vllm",
    built_in=True,
    provenance={
        "step_us": CPU_ASSUMED,
        "sequence_us": (
            "fitted to one row of TensorRT-LLM 1.0's table without a pipeline, the highest rate there: "
            "Qwen3-30B-A3B on GB200, 128/2048, 31,311 tokens/s. TensorRT-LLM's own measurements say 34 us "
            "(pull request 16564: 8.8 ms of an iteration for 256 requests) and 9 (issue 13957: 580 us for 64)"
        ),
        "request_us": "0: requests are tokenised in another process",
        "visits_all": "PyExecutor 1.0 looks at every active request for responses and to schedule, each time",
        "overlapped": "TensorRT-LLM 1.0, PyTorch backend: overlap scheduler on by default",
        "gap_us": "0: assumed hidden by the overlap scheduler",
        "saved_us": SAVED_ASSUMED,
        "capture_sizes": "cuda_graph_config of TensorRT-LLM's performance overview (v1.0)",
        "launch_layer_us": CPU_ASSUMED,
        "client_us": CLIENT_ASSUMED,
    },
)

TRTLLM = Engine("trtllm", "TensorRT-LLM", scheduler=None, overhead=OVERHEAD)
