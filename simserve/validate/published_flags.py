"""Engine settings of a published run that its row does not print, from what its source documents elsewhere.

Three sources: the defaults of the engine's version; the rules by which AIConfigurator's generator writes the
flags of a deployment (its `rule_plugin` and `cli_args` templates), for the runs that its authors made to find
gaps; and what TensorRT-LLM's bench sets (`published_trtllm`). Nothing here is chosen by what fits results.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
    if GENERATED in row.get("source_title", ""):
        options |= _generated(framework, row)
        assumed.append("flags by the rules of AIConfigurator's generator")
    return options


def _generated(framework: str, row: Row) -> Options:
    """Return what the generator sets for an aggregated deployment (`agg` rules, 2026)."""
    prompt = round(float(row["isl"])) + GENERATED_SPARE_TOKENS
    seqs = max(GENERATED_SEQS, round(float(row["concurrency"])))
    if framework == "sglang":
        mixed = {"enable_mixed_chunk": True} if version_of(row) >= (0, 5, 3) else {}
        return {"max_prefill_tokens": prompt, **mixed}  # templates before 0.5.3 misspell the other flag
    tokens = {"max_num_seqs": seqs, "max_num_batched_tokens": seqs + prompt}
    return {**tokens, "enable_prefix_caching": False}
