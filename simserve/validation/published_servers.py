"""How TensorRT-LLM's published throughput was measured, from its page and from trtllm-bench.

The page names the CUDA graphs that were captured; limits were left to trtllm-bench, which derives them from
the memory that weights leave and the lengths (`tensorrt_llm/bench/build/tuning.py`); its default scheduler
policy, guaranteed_no_evict, admits a request only where its whole answer fits. Chunked prefill is off unless
asked for, so the bench lets the longest prompt pass beside a full batch (`get_settings` in
`tensorrt_llm/bench/benchmark/utils/general.py`); rows give one length of prompt, taken as the longest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil, floor
from typing import Any, NamedTuple

from simserve.engines.overheads import with_graphs
from simserve.engines.presets import memory_rules
from simserve.engines.sglang.options import RANK_SEQUENCES, chunk_tokens, largest_decode_graph
from simserve.engines.trtllm import OVERHEAD as TRTLLM
from simserve.hardware import GpuSpec
from simserve.model import ModelSpec, total_params
from simserve.model.dtypes import PLAIN_BYTES, weight_format
from simserve.model.kv import kv_bytes_per_token
from simserve.model.memory import memory_ledger
from simserve.model.memory_lines import MemorySettings
from simserve.model.spec import Parallelism
from simserve.model.weights import weight_bytes_per_gpu, weight_bytes_total
from simserve.units import GIB

# Engine settings of a published run that its row does not print, from what its source documents elsewhere.
#
# Three sources: the defaults of the engine's version; the rules by which AIConfigurator's generator writes
# the
# flags of a deployment (its `rule_plugin` and `cli_args` templates), for the runs that its authors made to
# find
# gaps; and what TensorRT-LLM's bench sets (`published_trtllm`). Nothing here is chosen by what fits results.

Row = Mapping[str, str]
Options = dict[str, Any]

GENERATED = "aic-auto-gap-analysis"
"""Part of the source's title: runs of deployments that AIConfigurator generated."""
GENERATED_SPARE_TOKENS = 1500
GENERATED_SEQS = 512
"""Batch sizes below this are raised to it."""
TRTLLM_OPTIONS: Options = {
    "max_num_seqs": 2048,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
    "overhead": "trtllm",
}
"""TensorRT-LLM's defaults `max_batch_size` and `max_num_tokens`; its benchmarks send random tokens."""
SGLANG_WITHIN_MAX = (0, 5, 6)
"""Newest version read (0.5.1.post1, 0.5.6.post2: `PrefillAdder.add_one_req` in `managers/schedule_policy.py`)
that bounds further prompts by `max_prefill_tokens` although it cuts prompts; 0.5.23 does not."""
TRTLLM_POLICY = "vllm-0.33"
"""Whose scheduler stands for TensorRT-LLM's in-flight batching with chunked prompts."""


def version_of(row: Row) -> tuple[int, ...]:
    """Return the engine's version as numbers; empty if the row has none."""
    found = re.search(r"\d+\.\d+(\.\d+)?", row["framework_version"])
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def all_at_start(row: Row) -> bool:
    """Return True if all requests of the run were there at its start."""
    return not row.get("concurrency") and "queued at t=0" in row.get("arrival", "")


def options_of(row: Row, assumed: list[str]) -> Options:
    """Return settings beside the preset's, and name in `assumed` what they rest on."""
    framework, options = row["framework"].lower(), Options()
    if framework == "tensorrt-llm":
        options |= TRTLLM_OPTIONS
        if not all_at_start(row):  # the limits of these are the bench's: see `published_trtllm`
            assumed.append(f"TensorRT-LLM run as {TRTLLM_POLICY} with the default limits of its server")
    if framework == "vllm" and () < version_of(row) < (0, 14):
        options["async_scheduling"] = False
        assumed.append("asynchronous scheduling off, as before vLLM 0.14")
    if framework == "sglang" and () < version_of(row) <= SGLANG_WITHIN_MAX:
        options["prompts_within_max_prefill"] = True
        assumed.append("further prompts fit max_prefill_tokens whole, as SGLang 0.5.1 and 0.5.6 admit them")
    if GENERATED in row.get("source_title", ""):
        options |= _generated(framework, row)
        assumed.append("flags by the rules of AIConfigurator's generator")
    return options


def sglang_memory_share(row: Row, gpu_memory_bytes: int) -> float | None:
    """Return `mem_fraction_static` of SGLang 0.5.1 or 0.5.6 on a card of 60 to 160 GiB, to 3 decimals.

    None for other engines, releases and cards: the preset's rule holds. 0.5.6 reserves what 0.5.23 does
    without prefill graphs; 0.5.1 by the card and the number of GPUs (`server_args.py` of both wheels).
    """
    version, gib = version_of(row), gpu_memory_bytes / GIB
    if row["framework"].lower() != "sglang" or not () < version <= SGLANG_WITHIN_MAX or not 60 < gib < 160:
        return None
    gpus = round(float(row.get("tp") or 1)) * round(float(row.get("pp") or 1))
    if version[:3] <= (0, 5, 1):
        reserved_gib = (9.5 if gib < 90 else 12.0) + gpus / 2
    else:
        graphs = largest_decode_graph(gpu_memory_bytes, gpus, RANK_SEQUENCES)
        reserved_gib = max(10.0, 0.5 + (1.5 * chunk_tokens(gpu_memory_bytes) + 2 * graphs) / 1024 + gpus / 8)
    return round(1 - reserved_gib / gib, 3)


def _generated(framework: str, row: Row) -> Options:
    """Return what the generator sets for an aggregated deployment (`agg` rules, 2026)."""
    prompt = round(float(row["isl"])) + GENERATED_SPARE_TOKENS
    seqs = max(GENERATED_SEQS, round(float(row["concurrency"])))
    if framework == "sglang":
        mixed = {"enable_mixed_chunk": True} if version_of(row) >= (0, 5, 3) else {}
        return {"max_prefill_tokens": prompt, **mixed}  # templates before 0.5.3 misspell the other flag
    tokens = {"max_num_seqs": seqs, "max_num_batched_tokens": seqs + prompt}
    return {**tokens, "enable_prefix_caching": False}


# Settings of InferenceX's servers, from its benchmark scripts (github.com/SemiAnalysisAI/InferenceX).
#
# Rows of its results (AIConfigurator's collection holds some) give the model, the GPU, the version of vLLM
# and
# the lengths, but no flags. The scripts do: `benchmarks/single_node/<model>_<precision>_<gpu>.sh`, with what
# changed when in `perf-changelog.yaml` (the numbers below are its pull requests). Graphs of up to 2,048
# tokens,
# which some of the scripts capture, are not modelled.

ORIGIN = "InferenceX dump"
"""Part of the title of the source of such rows (its experimental sweeps have other servers)."""


class Server(NamedTuple):
    """What a script sets, beside what a row says."""

    what: str
    columns: dict[str, str]
    """Columns that the row leaves empty."""
    pool: dict[str, Any]
    options: dict[str, Any]


def _gpt_oss_on_hopper(row: Row) -> Server:
    """vLLM 0.13 to 0.18 (#327, #789, #960): `VLLM_MXFP4_USE_MARLIN=1`, as many sequences as clients."""
    options = {
        "max_num_seqs": round(float(row["concurrency"])),
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
    }
    return Server("experts by Marlin, limits", {}, {"moe_backend": "marlin"}, options)


def _minimax_on_h200(row: Row) -> Server:
    """vLLM 0.16 (#831): defaults, and more memory."""
    return Server("share of memory", {}, {"gpu_memory_utilization": 0.95}, {})


def _minimax_on_b200(row: Row) -> Server:
    """vLLM 0.19 (#1010, which brought the 512 clients): an 8-bit cache, twice the prompt per step."""
    options = {
        "max_num_batched_tokens": 2 * round(float(row["isl"])),
        "enable_prefix_caching": False,
    }
    return Server("KV cache at 8 bit, limits", {"kv_precision": "fp8"}, {}, options)


_SERVERS: dict[tuple[str, str], Callable[[Row], Server]] = {
    ("gpt-oss-120b", "H100"): _gpt_oss_on_hopper,
    ("gpt-oss-120b", "H200"): _gpt_oss_on_hopper,
    ("MiniMax-M2.5", "H200"): _minimax_on_h200,
    ("MiniMax-M2.5", "B200"): _minimax_on_b200,
}


def server_of(row: Row) -> Server | None:
    """Return what InferenceX's script sets, or None if the row is not one of those read."""
    if ORIGIN not in row.get("source_title", "") or row["framework"].lower() != "vllm":
        return None
    known = _SERVERS.get((row["model"].rsplit("/", 1)[-1], row["gpu"].split(" ")[0]))
    return known(row) if known and row.get("concurrency") else None


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
            MemorySettings(
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
        )
        whole = ledger.kv_blocks // ceil(longest / BLOCK_TOKENS)
        options["max_num_seqs"] = max(1, min(options["max_num_seqs"], whole))
        options["max_num_scheduled_tokens"] = budget
        options["enable_chunked_prefill"] = False
    return Bench(options, share, with_graphs(TRTLLM, sequences).name, longest)


def _keeps_everything(model: ModelSpec) -> bool:
    """True if no layer forgets tokens, so that the blocks of a whole answer can be set aside."""
    return all(
        not it.bounded and not it.sequence_bytes(1, "bf16")
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
