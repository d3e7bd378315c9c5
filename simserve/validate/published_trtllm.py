"""How TensorRT-LLM's published throughput was measured, from its page and from trtllm-bench.

The page names the CUDA graphs that were captured; limits were left to trtllm-bench, which derives them from
the memory that weights leave and the lengths (`tensorrt_llm/bench/build/tuning.py`); its default scheduler
policy, guaranteed_no_evict, admits a request only where its whole answer fits. Chunked prefill is off unless
asked for, so the bench lets the longest prompt pass beside a full batch (`get_settings` in
`tensorrt_llm/bench/benchmark/utils/general.py`); rows give one length of prompt, taken as the longest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, floor
from typing import Any, NamedTuple

from simserve.hardware import GpuSpec
from simserve.latency.overhead import TRTLLM, with_graphs
from simserve.model import ModelSpec, total_params
from simserve.model.dtypes import PLAIN_BYTES, weight_format
from simserve.model.kv import kv_bytes_per_token
from simserve.model.memory import memory_ledger
from simserve.model.memory_rules import memory_rules
from simserve.model.parallel import Parallelism
from simserve.model.spec import GqaAttention, MlaAttention
from simserve.model.weights import weight_bytes_per_gpu, weight_bytes_total

COUNTED_BYTES = {"fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5}
"""Bytes per stored element by which the bench estimates weights; 2 for all other formats."""
BLOCK_TOKENS = 16
"""Of the scheduler that stands for TensorRT-LLM's."""
POLICY = "vllm-0.33"
"""That scheduler."""
MOST_SEQUENCES = 4096
MOST_TOKENS = 32768


class Bench(NamedTuple):
    """What trtllm-bench sets for one row."""

    options: dict[str, Any]
    memory_share: float
    """Share of a GPU's memory for weights, activations and KV cache."""
    overhead: str
    """Engine overhead with the graphs of this row."""
    max_model_len: int
    """The longest sequence of the data set, as the bench tells the engine."""


def bench(
    model: ModelSpec,
    gpu: GpuSpec,
    pool: Mapping[str, Any],
    lengths: tuple[float, float],
    cache_share: float,
) -> Bench:
    """Return the settings for prompts and answers of these lengths (tokens) on a pool as a scenario has it.

    `cache_share` of the memory that weights leave free becomes KV cache.
    """
    parallel = Parallelism(**{name: pool[name] for name in ("tp", "pp", "dp", "ep")})
    gpus = parallel.tp * parallel.pp * parallel.dp
    weights, kv = pool["weights_dtype"], kv_bytes_per_token(model, pool["kv_dtype"])
    prompt, answer = lengths
    free = gpus * gpu.hbm_bytes - counted_weights(model, weights)
    fitting = max(0.0, cache_share * free / (kv * (prompt + answer)))
    sequences, tokens = limits(fitting / parallel.pp, prompt, answer)
    own = weight_bytes_per_gpu(model, parallel, weights)
    cache = cache_share * (gpu.hbm_bytes - own)
    per_rank = floor(cache * parallel.tp * parallel.pp / (kv * (prompt + answer)))
    budget, longest = max(tokens, round(prompt) + sequences), round(prompt + answer)
    share = round((own + cache) / gpu.hbm_bytes, 4)
    options: dict[str, Any] = {
        "max_num_seqs": max(1, min(sequences * parallel.pp, per_rank)),
        "max_num_batched_tokens": budget,
    }
    if _keeps_everything(model):
        options["max_num_batched_tokens"] = max(budget, longest, options["max_num_seqs"])
        ledger = memory_ledger(
            model,
            gpu,
            parallel,
            weights_dtype=weights,
            kv_dtype=pool["kv_dtype"],
            block_size=BLOCK_TOKENS,
            gpu_memory_utilization=share,
            rules=memory_rules(POLICY),
            **options,
        )
        whole = ledger.kv_blocks // ceil(longest / BLOCK_TOKENS)
        options["max_num_seqs"] = max(1, min(options["max_num_seqs"], whole))
        options["max_num_scheduled_tokens"] = budget
        options["enable_chunked_prefill"] = False
    return Bench(options, share, with_graphs(TRTLLM, sequences).name, longest)


def _keeps_everything(model: ModelSpec) -> bool:
    """True if no layer forgets tokens, so that the blocks of a whole answer can be set aside."""
    return all(
        (isinstance(it, GqaAttention) and it.span == "full") or isinstance(it, MlaAttention)
        for group in model.layers
        for it in group.attentions
    )


def counted_weights(model: ModelSpec, weights: str) -> float:
    """Return the bytes that the bench takes the weights for: elements stored times bytes by format.

    4-bit checkpoints store two weights in an element, and MXFP4 is not among the formats: the bench counts
    two bytes for each of its elements.
    """
    quantised_bytes = weight_format(weights).expert_bytes
    params = total_params(model)
    if quantised_bytes == PLAIN_BYTES:
        return PLAIN_BYTES * params
    held = weight_bytes_total(replace(model, vision=None), weights)
    quantised = (PLAIN_BYTES * params - held) / (PLAIN_BYTES - quantised_bytes)
    stored = params - quantised * (1 - quantised_bytes)
    return stored * COUNTED_BYTES.get(weights, 2.0)


def limits(fitting: float, prompt: float, answer: float) -> tuple[int, int]:
    """Return trtllm-bench's limits of sequences and of tokens in a step where `fitting` requests fit."""
    sequences = min(fitting, MOST_SEQUENCES)
    tokens = min(sequences * (1 + prompt / answer), MOST_TOKENS)
    if sequences < 256:
        most = max(64, _up(sequences, 32))
    else:
        most = _up(sequences, 128 if sequences < 1024 else 256)
    if tokens < 4096:
        return most, max(2048, _up(tokens, 256))
    return most, _up(tokens, 512 if tokens < 8192 else 1024)


def _up(value: float, step: int) -> int:
    return step * ceil(value / step)
