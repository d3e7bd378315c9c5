"""What every reported number means, in one sentence each; the report prints these next to the numbers.

The definitions follow vLLM's bench where tools differ (AIPerf calls our TPOT "ITL" and our ITL "ICL").
"""

from __future__ import annotations

from simserve.metrics.rates import RATES_RULE
from simserve.metrics.slo_verdict import SLO_RULE
from simserve.metrics.stability import RULE

DEFINITIONS: dict[str, str] = {
    "whole run": "All requests, from the first arrival to the last event that concerns a request.",
    "steady window": (
        "Latencies: requests whose arrival rank lies in the window (first and last tenth of the "
        "arrivals left out of the statistics but kept in the load). Rates: what completes between "
        "the first arrival inside the window and the first arrival after it."
    ),
    "TTFT": (
        "Time to first token: first token shown - arrival, queueing included. A token that was "
        "shown is not taken back by a later preemption. Completed requests with at least one output "
        "token."
    ),
    "TPOT": (
        "Time per output token: (E2E - TTFT) / (n - 1), one value per completed request with n >= 2 "
        "output tokens. AIPerf and GenAI-Perf call this ITL."
    ),
    "ITL": (
        "Inter-token latency: every gap between consecutive tokens, pooled over all requests, "
        "waiting after preemptions included. Mean exact; percentiles and maximum from a histogram "
        "with bins narrower than 0.5 %."
    ),
    "E2E": (
        "End to end: last token shown - arrival, always (waiting, preemption and recompute "
        "included). With 0 output tokens: end of the prompt - arrival. With 1 output token E2E = "
        "TTFT and there is no TPOT or ITL."
    ),
    "queueing": (
        "First scheduled - arrival, completed requests; in a prefill/decode split also the waiting for room "
        "and for the first step on the decode side. Time waiting again after a preemption is apart."
    ),
    "re-queueing": "Time spent waiting again after preemptions, per completed request (0 for most).",
    "normalised latency": "E2E / n per completed request with n >= 1 output tokens (Orca's measure).",
    "throughput": (
        "Completed requests, their output tokens and their prompt + output tokens, divided by the "
        "duration of the window."
    ),
    "SLO attainment": (
        "Share of the window's requests that completed and met every limit. Refused, abandoned and "
        "unfinished requests are not good; a quantity that a request does not have (TPOT of one "
        "token) cannot break its limit. An ITL limit is judged over gaps and reported apart."
    ),
    "SLO verdict": SLO_RULE,
    "goodput": "Requests per second that meet every limit, counted as the other rates are.",
    "KV use": (
        "KV blocks held by running requests / usable blocks: time-weighted mean over the window "
        "(idle time counts as 0) and highest value of the stored timeline."
    ),
    "busy": "Share of the whole run, to the replica's last step, in which it was computing a step.",
    "MFU": (
        "Model FLOPs / (duration of the whole run * vendor peak of all GPUs). No padding, no "
        "recomputation; the attention scores of recomputed tokens are taken at the mean of all "
        "prompt tokens."
    ),
    "HFU": "As MFU, with recomputed tokens counted.",
    "MBU": (
        "Needed bytes / (duration of the whole run * vendor bandwidth of all GPUs): the weights "
        "that each step touches + the KV that decode steps read."
    ),
    "tokens per step": "Prompt and output tokens computed / engine steps.",
    "preemptions": "Times that a running request lost its KV and went back to the queue.",
    "recomputed tokens": "Tokens computed again after preemptions.",
    "hit rate": "Prompt tokens found in the prefix cache / prompt tokens, at first admission only.",
    "operations": (
        "Busy time of all replicas by group of kernels. Engine overhead is what a step lasts beyond its "
        "kernels: the engine's own time, launches, gaps. Of ranks that step together: what their steps "
        "wait for, before any overlap."
    ),
    "imbalance": "Busiest replica's computed tokens / mean over the pool's replicas.",
    "rates": RATES_RULE,
    "cost": "GPUs * price per GPU-hour / output tokens per hour, at the rates that rank deployments.",
    "percentiles": "Linear interpolation between order statistics (numpy's default). A dash means no data.",
    "stability": RULE,
}
